package engine

import (
	"errors"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/train"
)

// run is the elements that all devices which share an entry's shards have of what one of them has: more than local has where
// there is padding.
func (o *own) run(e entry) int { return o.shards * e.flat }

func (e entry) ranks() int {
	if e.cut == nil {
		return 1
	}
	return e.cut.Ranks()
}

// flatten makes, of a whole entry, one vector of what the devices have of it that share layers, one after another: the elements of
// each in row-major order, filled up with zeros to shards of equal length.
func (o *own) flatten(e entry, whole *tensors.Tensor) (*tensors.Tensor, error) {
	stacked, err := e.cut.Stack(whole)
	if err != nil {
		return nil, err
	}
	flat := tensors.FromShape(shapes.Make(stacked.DType(), e.ranks()*o.run(e)))
	return flat, e.copied(stacked, flat, o.run(e), false)
}

// unflatten undoes flatten.
func (o *own) unflatten(e entry, flat *tensors.Tensor) (*tensors.Tensor, error) {
	shape := e.local.Clone()
	if e.cut != nil {
		shape.Dimensions[e.cut.Axis] *= e.ranks()
	}
	stacked := tensors.FromShape(shapes.Make(flat.DType(), shape.Dimensions...))
	if err := e.copied(stacked, flat, o.run(e), true); err != nil || e.cut == nil {
		return stacked, err
	}
	return e.cut.Join(stacked, e.spec.Shape.Dimensions[e.cut.Axis])
}

// copied copies between the two forms of an entry; run is how many elements each device has in the flat one.
func (e entry) copied(stacked, flat *tensors.Tensor, run int, back bool) error {
	size := flat.DType().Size()
	outer, inner := 1, size // of runs that lie together
	for axis, d := range e.local.Dimensions {
		if e.cut != nil && axis < e.cut.Axis {
			outer *= d
		} else {
			inner *= d
		}
	}
	var err error
	read, write := stacked, flat
	if back {
		read, write = flat, stacked
	}
	failed := read.ConstBytes(func(from []byte) {
		err = write.MutableBytes(func(to []byte) {
			for r := range e.ranks() {
				for k := range outer {
					inStack, inFlat := (k*e.ranks()+r)*inner, r*run*size+k*inner
					if back {
						copy(to[inStack:inStack+inner], from[inFlat:])
					} else {
						copy(to[inFlat:inFlat+inner], from[inStack:])
					}
				}
			}
		})
	})
	return errors.Join(failed, err)
}

// strip takes, of each of so many vectors one after another, the elements from first on, so many of each.
func strip(flat *tensors.Tensor, vectors, first, n int) (*tensors.Tensor, error) {
	part := tensors.FromShape(shapes.Make(flat.DType(), vectors*n))
	size := flat.DType().Size()
	var own error
	err := flat.ConstBytes(func(from []byte) {
		own = part.MutableBytes(func(to []byte) {
			each := len(from) / vectors
			for v := range vectors {
				copy(to[v*n*size:(v+1)*n*size], from[v*each+first*size:])
			}
		})
	})
	return part, errors.Join(err, own)
}

// cellArrays makes what lies in a rank's cells, whole over its devices and on the host, of the entries of its state. place is the
// rank's among those that share the state.
func (o *own) cellArrays(values []*tensors.Tensor, place int) ([]*tensors.Tensor, error) {
	var all []*tensors.Tensor
	for _, c := range o.cells {
		var t *tensors.Tensor
		var err error
		switch {
		case c.unit >= 0:
			t, err = o.unitArray(o.units[c.unit], c, values, place)
		case c.shard:
			e := o.entries[c.entry]
			if t, err = o.flatten(e, values[c.entry]); err == nil && !o.inside {
				t, err = strip(t, e.ranks(), place*e.flat, e.flat)
			}
		default:
			t, err = o.entries[c.entry].cut.Stack(values[c.entry])
		}
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, nil
}

// unitArray is the matrix of a unit, or a shard of it, of all devices that have other cuts.
func (o *own) unitArray(u *unit, c cell, values []*tensors.Tensor, place int) (*tensors.Tensor, error) {
	cuts := 1
	for _, at := range u.members {
		cuts = max(cuts, o.entries[at].ranks())
	}
	dtype := c.shape.DType
	matrix := tensors.FromShape(shapes.Make(dtype, cuts*o.shards, u.size))
	size := dtype.Size()
	for k, at := range u.members {
		e := o.entries[at]
		value, err := train.Convert(values[at], dtype)
		if err != nil {
			return nil, err
		}
		flat, err := o.flatten(e, value)
		if err != nil {
			return nil, err
		}
		n := u.lengths[k]
		var own error
		err = flat.ConstBytes(func(from []byte) {
			own = matrix.MutableBytes(func(to []byte) {
				for row := range cuts * o.shards {
					at := row
					if e.cut == nil { // all have the same
						at = row % o.shards
					}
					copy(to[(row*u.size+u.offsets[k])*size:][:n*size], from[at*n*size:])
				}
			})
		})
		if err := errors.Join(err, own); err != nil {
			return nil, err
		}
	}
	if !c.shard {
		return matrix, nil
	}
	vector := tensors.FromShape(shapes.Make(dtype, matrix.Size()))
	if err := copyBytes(vector, matrix); err != nil || o.inside {
		return vector, err
	}
	return strip(vector, cuts, place*u.size, u.size)
}

func copyBytes(to, from *tensors.Tensor) error {
	var own error
	err := from.ConstBytes(func(src []byte) {
		own = to.MutableBytes(func(dst []byte) { copy(dst, src) })
	})
	return errors.Join(err, own)
}

// merged copies what lies on a rank's devices to the host: whole over them.
func merged(on *dtensor.Tensor) (*tensors.Tensor, error) {
	if on.ShardShape().Equal(on.Shape()) {
		return on.Shards()[0].LocalClone()
	}
	return on.Merge()
}

// held returns what the rank has of an entry, as a vector with what devices have that share layers one after another, where it is
// sharded; and else the whole entry.
func (o *own) held(i int, now func(cell int) (*tensors.Tensor, error), place int) (*tensors.Tensor, error) {
	e := o.entries[i]
	if i >= len(o.whole) || !o.flat {
		t, err := now(o.cellOf(i))
		if err != nil || e.flat > 0 || e.cut == nil {
			return t, err
		}
		return e.cut.Join(t, e.spec.Shape.Dimensions[e.cut.Axis])
	}
	u := o.unitOf[i]
	at, ok := o.masters[u.number]
	if !ok {
		at = o.weights[u.number]
	}
	all, err := now(at)
	if err != nil {
		return nil, err
	}
	rows := all.Size() / u.size
	n, offset := o.length(i), o.offset(i)
	cuts := 1
	for _, m := range u.members {
		cuts = max(cuts, o.entries[m].ranks())
	}
	flat := tensors.FromShape(shapes.Make(all.DType(), rows*n))
	size := all.DType().Size()
	var own error
	err = all.ConstBytes(func(from []byte) {
		own = flat.MutableBytes(func(to []byte) {
			for row := range rows {
				copy(to[row*n*size:(row+1)*n*size], from[(row*u.size+offset)*size:])
			}
		})
	})
	if err := errors.Join(err, own); err != nil {
		return nil, err
	}
	if !o.cells[at].shard && !o.inside { // the whole, of which the rank's row is asked
		if flat, err = strip(flat, cuts, place*n, n); err != nil {
			return nil, err
		}
	}
	if e.cut == nil && cuts > 1 { // all that share layers have the same
		return strip(flat, 1, 0, flat.Size()/cuts)
	}
	return flat, nil
}

// kindOf is what a cell is for.
func (o *own) kindOf(i int) memest.Kind {
	c := o.cells[i]
	_, scaling, counters := train.Tail(o.recipe, o.cells)
	switch {
	case i >= len(o.cells)-len(scaling)-len(counters):
		return batchKind
	case c.unit >= 0 && o.weights[c.unit] == i, c.unit < 0 && i < len(o.whole) && !o.flat:
		return memest.Parameters
	case c.unit >= 0:
		return memest.Master
	}
	return memest.Optimizer
}

// batchKind is memory of batches and counters.
const batchKind memest.Kind = "batch"
