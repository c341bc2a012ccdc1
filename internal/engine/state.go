package engine

import (
	"errors"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/train"
)

// arrayOf makes what lies in a cell, whole over a rank's devices and on the host, of the entries of its state. place is the
// rank's among those that share the state.
func (o *own) arrayOf(c cell, values []*tensors.Tensor, place int) (*tensors.Tensor, error) {
	first := c.of[0]
	if o.entries[first].flat == 0 {
		return o.entries[first].cut.Stack(values[first])
	}
	cuts := o.cutsIn(c)
	from, rows := o.rowsIn(c, place)
	shape := c.shape.Clone()
	shape.Dimensions[0] *= cuts * rows * c.columns() / c.shape.Size()
	all := tensors.FromShape(shape)
	for _, i := range c.of {
		e := o.entries[i]
		value, err := train.Convert(values[i], c.shape.DType)
		if err != nil {
			return nil, err
		}
		flat, err := o.flatten(e, value)
		if err != nil {
			return nil, err
		}
		if err := moved(all, flat, func(move func(to, from, n int)) {
			for cut := range cuts {
				for row := range rows { // devices that share layers may have the same of some
					move((cut*rows+row)*c.columns()+e.offset, (cut%ranks(e.cut)*o.shards+from+row)*e.flat, e.flat)
				}
			}
		}); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// held undoes arrayOf for an entry: it returns all of it; or what the rank has, where it is sharded: as a vector, with what devices
// have that share layers one after another.
func (o *own) held(i int, now func(cell int) (*tensors.Tensor, error), place int) (*tensors.Tensor, error) {
	e := o.entries[i]
	c := o.cells[e.cell]
	all, err := now(e.cell)
	switch {
	case err != nil || e.flat == 0 && e.cut == nil:
		return all, err
	case e.flat == 0:
		return e.cut.Join(all, e.spec.Shape.Dimensions[e.cut.Axis])
	}
	from, rows := o.rowsIn(c, place)
	own := tensors.FromShape(shapes.Make(all.DType(), ranks(e.cut)*o.mine*e.flat))
	return own, moved(own, all, func(move func(to, from, n int)) {
		for cut := range ranks(e.cut) {
			for row := range o.mine {
				move((cut*o.mine+row)*e.flat, (cut*rows+place-from+row)*c.columns()+e.offset, e.flat)
			}
		}
	})
}

// columns is the elements of each shard that lies in a cell.
func (c cell) columns() int { return c.shape.Dimensions[len(c.shape.Dimensions)-1] }

// rowsIn is which shards of a cell's matrix a rank has, which has a place among those that share the state.
func (o *own) rowsIn(c cell, place int) (first, n int) {
	if c.whole {
		return 0, o.shards
	}
	return place, o.mine
}

// cutsIn is how many of a rank's devices have other parts of what is in a cell, because they share layers.
func (o *own) cutsIn(c cell) int {
	cuts := 1
	for _, i := range c.of {
		cuts = max(cuts, ranks(o.entries[i].cut))
	}
	return cuts
}

// flatten makes, of a whole entry, one vector of what the devices have of it that share layers, one after another: the elements of
// each in row-major order, filled up with zeros to shards of equal length.
func (o *own) flatten(e entry, whole *tensors.Tensor) (*tensors.Tensor, error) {
	stacked, err := e.cut.Stack(whole)
	if err != nil {
		return nil, err
	}
	flat := tensors.FromShape(shapes.Make(stacked.DType(), ranks(e.cut)*o.shards*e.flat))
	return flat, moved(flat, stacked, func(move func(to, from, n int)) {
		o.runs(e, func(inStack, inFlat, n int) { move(inFlat, inStack, n) })
	})
}

// unflatten undoes flatten.
func (o *own) unflatten(e entry, flat *tensors.Tensor) (*tensors.Tensor, error) {
	shape := e.local.Clone()
	if shape.DType = flat.DType(); e.cut != nil {
		shape.Dimensions[e.cut.Axis] *= ranks(e.cut)
	}
	stacked := tensors.FromShape(shape)
	if err := moved(stacked, flat, func(move func(to, from, n int)) { o.runs(e, move) }); err != nil || e.cut == nil {
		return stacked, err
	}
	return e.cut.Join(stacked, e.spec.Shape.Dimensions[e.cut.Axis])
}

// runs calls do for each run of n elements that lie together in an entry as its cut stacks it, and in its flat form.
func (o *own) runs(e entry, do func(inStack, inFlat, n int)) {
	outer, n := 1, 1
	for axis, d := range e.local.Dimensions {
		if e.cut != nil && axis < e.cut.Axis {
			outer *= d
		} else {
			n *= d
		}
	}
	for r := range ranks(e.cut) {
		for k := range outer {
			do((k*ranks(e.cut)+r)*n, r*o.shards*e.flat+k*n, n)
		}
	}
}

// moved copies elements between tensors of one type on the host: each calls move for each run of them.
func moved(to, from *tensors.Tensor, each func(move func(to, from, n int))) error {
	size := to.DType().Size()
	var own error
	err := from.ConstBytes(func(in []byte) {
		own = to.MutableBytes(func(out []byte) {
			each(func(to, from, n int) { copy(out[to*size:(to+n)*size], in[from*size:]) })
		})
	})
	return errors.Join(err, own)
}

// swapped copies blocks of so many elements, which lie as rows of so many columns, so that they lie as columns of rows.
func swapped(from *tensors.Tensor, rows, columns int) (*tensors.Tensor, error) {
	to := tensors.FromShape(from.Shape())
	n := from.Size() / (rows * columns)
	return to, moved(to, from, func(move func(to, from, n int)) {
		for i := range rows {
			for j := range columns {
				move((j*rows+i)*n, (i*columns+j)*n, n)
			}
		}
	})
}

// merged copies what lies on a rank's devices to the host: whole over them.
func merged(on *dtensor.Tensor) (*tensors.Tensor, error) {
	if on.ShardShape().Equal(on.Shape()) {
		return on.Shards()[0].LocalClone()
	}
	return on.Merge()
}
