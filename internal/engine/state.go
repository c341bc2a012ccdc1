package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/train"
)

// arrayOf returns the array of a cell, over all of a rank's devices and on the host, from the full entries of the
// state. Index is the rank's index along an axis.
func (o *own) arrayOf(c cell, values []*tensors.Tensor, index func(axis string) int) (*tensors.Tensor, error) {
	first := o.entries[c.of[0]]
	if first.flat == 0 {
		value, err := first.onRank(values[c.of[0]], index)
		if err != nil {
			return nil, err
		}
		return first.cut.Stack(value)
	}
	from, rows := first.rowsIn(c, index)
	shape := c.shape.Clone()
	shape.Dimensions[0] *= c.cuts * rows * c.columns() / c.shape.Size()
	all := tensors.FromShape(shape)
	for _, i := range c.of {
		e := o.entries[i]
		value, err := e.onRank(values[i], index)
		if err != nil {
			return nil, err
		}
		if value, err = train.Convert(value, c.shape.DType); err != nil {
			return nil, err
		}
		flat, err := e.flatten(value)
		if err != nil {
			return nil, err
		}
		if err := moved(all, flat, func(move func(to, from, n int)) {
			for cut := range c.cuts {
				for row := range rows { // some tensor-parallel devices may have equal elements
					move((cut*rows+row)*c.columns()+e.offset, (cut%ranks(e.cut)*e.n+from+row)*e.flat, e.flat)
				}
			}
		}); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// onRank returns the rank's part of a full entry, before the cut between its devices.
func (e entry) onRank(full *tensors.Tensor, index func(axis string) int) (*tensors.Tensor, error) {
	if e.apart == nil {
		return full, nil
	}
	return e.apart.Take(full, index(e.apart.Along[0]))
}

// content is what is in a cell, or in some of its columns, over all of the rank's devices and on the host. An entry has
// the columns from offset on.
type content struct {
	all             *tensors.Tensor
	columns, offset int
}

// held is the inverse of arrayOf for one entry: it returns what the rank has of it, or, if that is sharded, a vector of
// the rank's shards, one device after another.
func (o *own) held(i int, now func(i int) (content, error), index func(axis string) int) (*tensors.Tensor, error) {
	e := o.entries[i]
	in, err := now(i)
	all := in.all
	switch {
	case err != nil || e.flat == 0 && e.cut == nil:
		return all, err
	case e.flat == 0:
		return e.cut.Join(all, e.spec.Shape.Dimensions[e.cut.Axis])
	}
	from, rows := e.rowsIn(o.cells[e.cell], index)
	own := tensors.FromShape(shapes.Make(all.DType(), ranks(e.cut)*e.perRank*e.flat))
	return own, moved(own, all, func(move func(to, from, n int)) {
		for cut := range ranks(e.cut) {
			for row := range e.perRank {
				move((cut*e.perRank+row)*e.flat, (cut*rows+index(e.axis)-from+row)*in.columns+in.offset, e.flat)
			}
		}
	})
}

// columns returns the number of elements of each shard in a cell.
func (c cell) columns() int { return c.shape.Dimensions[len(c.shape.Dimensions)-1] }

// rowsIn returns which shards of a cell's matrix a rank has.
func (s shards) rowsIn(c cell, index func(axis string) int) (first, n int) {
	if c.full {
		return 0, s.n
	}
	return index(s.axis), s.perRank
}

// flatten converts a rank's entry to a vector of the parts of its devices, one after another, each in row-major order
// and padded with zeros to shards of equal length.
func (e entry) flatten(full *tensors.Tensor) (*tensors.Tensor, error) {
	stacked, err := e.cut.Stack(full)
	if err != nil {
		return nil, err
	}
	flat := tensors.FromShape(shapes.Make(stacked.DType(), ranks(e.cut)*e.n*e.flat))
	return flat, moved(flat, stacked, func(move func(to, from, n int)) {
		e.runs(func(inStack, inFlat, n int) { move(inFlat, inStack, n) })
	})
}

// unflatten is the inverse of flatten.
func (e entry) unflatten(flat *tensors.Tensor) (*tensors.Tensor, error) {
	shape := e.cut.Part(e.spec.Shape).Clone()
	if shape.DType = flat.DType(); e.cut != nil {
		shape.Dimensions[e.cut.Axis] *= ranks(e.cut)
	}
	stacked := tensors.FromShape(shape)
	if err := moved(stacked, flat, func(move func(to, from, n int)) { e.runs(move) }); err != nil || e.cut == nil {
		return stacked, err
	}
	return e.cut.Join(stacked, e.spec.Shape.Dimensions[e.cut.Axis])
}

// runs calls do for each range of n elements contiguous both in an entry as its cut stacks it and in its flat form.
func (e entry) runs(do func(inStack, inFlat, n int)) {
	outer, n := 1, 1
	for axis, d := range e.cut.Part(e.spec.Shape).Dimensions {
		if e.cut != nil && axis < e.cut.Axis {
			outer *= d
		} else {
			n *= d
		}
	}
	for r := range ranks(e.cut) {
		for k := range outer {
			do((k*ranks(e.cut)+r)*n, r*e.n*e.flat+k*n, n)
		}
	}
}

// moved copies elements between tensors of one type on the host: each calls move for each range.
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

// swapped transposes a matrix of rows × columns blocks of equal size.
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

// merged copies an array from a rank's devices to the host.
func merged(on *dtensor.Tensor) (*tensors.Tensor, error) {
	if on.ShardShape().Equal(on.Shape()) {
		return on.Shards()[0].LocalClone()
	}
	return on.Merge()
}

// replace replaces the state by full tensors on the host, in the order of the rank's entries.
func (r *Rank) replace(values []*tensors.Tensor) error {
	var all []*tensors.Tensor
	for _, c := range r.own.cells {
		t, err := r.own.arrayOf(c, values, r.index)
		if err != nil {
			return err
		}
		all = append(all, t)
	}
	var cells []*dtensor.Tensor
	for i, c := range r.own.cells {
		if c.host {
			r.host.set(slot{kind: cellSlot, number: i}, all[i])
			cells = append(cells, nil)
			continue
		}
		on, err := r.arrays.place(c.kind, all[i], c.on)
		if err != nil {
			return errors.Join(err, r.arrays.release(cells...))
		}
		cells = append(cells, on)
	}
	old := r.cells
	r.cells = cells
	return r.arrays.release(old...)
}

// entry returns a full entry of the state. It is a collective call if ranks have shards of it.
func (r *Rank) entry(ctx context.Context, i int) (*tensors.Tensor, error) {
	return r.entryOf(ctx, i, r.contentNow)
}

func (r *Rank) entryOf(ctx context.Context, i int, now func(i int) (content, error)) (*tensors.Tensor, error) {
	e := r.own.entries[i]
	held, err := r.own.held(i, now, r.index)
	if g := r.groups[e.axis]; g != nil && err == nil && e.flat > 0 {
		full := shapes.Make(held.DType(), g.Size()*held.Size())
		held, err = gatherRows(ctx, g, held, ranks(e.cut), full)
	}
	if err == nil && e.flat > 0 {
		held, err = e.unflatten(held)
	}
	if err != nil || e.apart == nil {
		return held, err
	}
	all := held.Shape().Clone() // newCommon has checked that the ranks' parts are equal ranges of axis 0, in order
	all.Dimensions[0] *= e.apart.Ranks()
	return gatherRows(ctx, r.groups[e.apart.Along[0]], held, 1, all)
}

// gatherRows gathers the rows of a matrix on the host: all ranks' first rows, then their second rows, and so on.
func gatherRows(ctx context.Context, g group.Group, own *tensors.Tensor, rows int,
	full shapes.Shape) (*tensors.Tensor, error) {
	all := tensors.FromShape(full)
	var inner, failed error
	err := own.ConstBytes(func(in []byte) {
		inner = all.MutableBytes(func(out []byte) { failed = group.AllGather(ctx, g, in, out) })
	})
	if err := errors.Join(err, inner, failed); err != nil || rows == 1 {
		return all, err
	}
	return swapped(all, g.Size(), rows)
}

// contentNow returns the cell of an entry.
func (r *Rank) contentNow(i int) (in content, err error) {
	e := r.own.entries[i]
	c := r.own.cells[e.cell]
	if e.flat > 0 {
		in.columns, in.offset = c.columns(), e.offset
	}
	if t := r.host.get(slot{kind: cellSlot, number: e.cell}); t != nil {
		in.all, err = t.LocalClone()
	} else {
		in.all, err = merged(r.cells[e.cell])
	}
	return in, err
}

// columnsNow returns a function that is contentNow for entries, without the other columns of their cells: a program
// copies these columns on the devices.
func (r *Rank) columnsNow(entries []int) (func(i int) (content, error), error) {
	var cells, of []int
	var l layout
	key := "columns"
	for _, i := range entries {
		e := r.own.entries[i]
		if c := r.own.cells[e.cell]; e.flat > 0 && !c.host {
			if !slices.Contains(cells, e.cell) {
				cells, l.in = append(cells, e.cell), append(l.in, c.on)
			}
			of, l.out = append(of, i), append(l.out, c.on)
			key += fmt.Sprint(" ", slices.Index(cells, e.cell), c.shape, e.offset, e.flat)
		}
	}
	if len(of) == 0 {
		return r.contentNow, nil
	}
	program := r.columns[key]
	if program == nil {
		var err error
		if program, err = r.compile(key, func(in []*graph.Node) (out []*graph.Node) {
			for _, i := range of {
				e := r.own.entries[i]
				x := in[slices.Index(cells, e.cell)]
				axes := make([]graph.SliceAxisSpec, x.Rank())
				for axis := range axes {
					axes[axis] = graph.AxisRange()
				}
				axes[len(axes)-1] = graph.AxisRange(e.offset, e.offset+e.flat)
				out = append(out, graph.Slice(x, axes...))
			}
			return out
		}, l); err != nil {
			return nil, err
		}
		r.columns[key] = program
	}
	var args []any
	for _, c := range cells {
		args = append(args, r.cells[c])
	}
	out, err := program.Call(args...)
	if err != nil {
		return nil, err
	}
	found := map[int]content{}
	for k, i := range of {
		all, failed := merged(out[k])
		found[i], err = content{all, r.own.entries[i].flat, 0}, errors.Join(err, failed, out[k].FinalizeAll())
	}
	return func(i int) (content, error) {
		if in, ok := found[i]; ok {
			return in, nil
		}
		return r.contentNow(i)
	}, err
}
