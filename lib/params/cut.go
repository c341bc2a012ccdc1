package params

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"
)

// Cut says which part of an array each of several ranks has: some of the indices along one axis, and all of the other
// axes. A nil *Cut means that every rank has the full array.
//
// [Cut.Validate] checks a cut; the other methods expect a valid one unless they return an error.
type Cut struct {
	Axis int // from 0
	// Index lists for each rank its indices of the full axis, in the rank's order; −1 is padding, whose values are 0.
	// All ranks have the same number. Each index is on at least one rank; ranks with the same index have equal copies.
	Index [][]int
	// Along names the axes along which the ranks are counted, the major one first: of a mesh, or one between ranks of a
	// group. nil is Shards.Axis.
	Along []string
}

// EvenCut cuts an axis of the given size into equal consecutive ranges, one per rank, in order. With pad the last ranks
// may have padding; without, it is an error if ranks does not divide the axis.
func EvenCut(axis, size, ranks int, pad bool) (*Cut, error) {
	if ranks < 1 || size < 1 || !pad && size%ranks != 0 {
		return nil, fmt.Errorf("params: %d indices along axis %d cannot be cut evenly for %d ranks: choose a number "+
			"of ranks that divides them", size, axis, ranks)
	}
	length := (size + ranks - 1) / ranks
	c := &Cut{Axis: axis, Index: make([][]int, ranks)}
	for r := range ranks {
		for i := r * length; i < (r+1)*length; i++ {
			if i < size {
				c.Index[r] = append(c.Index[r], i)
			} else {
				c.Index[r] = append(c.Index[r], -1)
			}
		}
	}
	return c, nil
}

// Validate returns an error if the cut does not fit the parameter: the axis does not exist; there are no ranks; ranks
// have no indices or different numbers of them; an index is out of range; a rank has an index twice, or no rank has it.
// A nil cut fits every parameter.
func (c *Cut) Validate(s Spec) error {
	if err := c.check(s.Shape.Dimensions); err != nil {
		return fmt.Errorf("params: the cut of %q: %w", s.Name, err)
	}
	return nil
}

func (c *Cut) check(full []int) error {
	switch {
	case c == nil:
		return nil
	case c.Axis < 0 || c.Axis >= len(full):
		return fmt.Errorf("its axis is %d, and the dimensions are %v: choose one of the axes, from 0, or a "+
			"nil cut for a scalar", c.Axis, full)
	case len(c.Index) == 0 || len(c.Index[0]) == 0:
		return fmt.Errorf("it has the indices %v: give at least one rank, and each at least one index", c.Index)
	}
	size := full[c.Axis]
	holder := slices.Repeat([]int{-1}, size) // the last rank that has the index
	for rank, list := range c.Index {
		if len(list) != c.Length() {
			return fmt.Errorf("rank %d has %d indices and rank 0 has %d: fill up with −1, which is padding", rank,
				len(list), c.Length())
		}
		for _, i := range list {
			switch {
			case i < -1 || i >= size:
				return fmt.Errorf("rank %d has index %d along axis %d of the dimensions %v: choose from 0 to %d, or "+
					"−1 for padding", rank, i, c.Axis, full, size-1)
			case i >= 0 && holder[i] == rank:
				return fmt.Errorf("rank %d has index %d twice: give it once", rank, i)
			case i >= 0:
				holder[i] = rank
			}
		}
	}
	if i := slices.Index(holder, -1); i >= 0 {
		return fmt.Errorf("no rank has index %d along axis %d of the dimensions %v: give it to one", i, c.Axis, full)
	}
	return nil
}

// Ranks is the number of ranks.
func (c *Cut) Ranks() int { return len(c.Index) }

// Length is the number of indices of each rank, including padding.
func (c *Cut) Length() int { return len(c.Index[0]) }

// Counted returns, for each of a rank's indices, whether this rank is the first that has it; padding is false. So over
// all ranks each index counts once. The cut must not be nil.
func (c *Cut) Counted(rank int) []bool {
	before := map[int]bool{-1: true}
	for _, list := range c.Index[:rank] {
		for _, i := range list {
			before[i] = true
		}
	}
	counted := make([]bool, c.Length())
	for k, i := range c.Index[rank] {
		counted[k] = !before[i]
	}
	return counted
}

// Part returns the shape of a rank's part of an array; for a nil cut, the array's shape.
func (c *Cut) Part(full shapes.Shape) shapes.Shape {
	if c == nil {
		return full
	}
	return c.along(full, c.Length())
}

// along returns a shape with another length of the cut's axis.
func (c *Cut) along(shape shapes.Shape, length int) shapes.Shape {
	other := shape.Clone()
	other.Dimensions[c.Axis] = length
	return other
}

// On returns the cut of an array along another axis, with the same indices: of an optimizer's state, whose axes may be
// fewer than its parameter's.
func (c *Cut) On(axis int) *Cut { return &Cut{axis, c.Index, c.Along} }

// Stack returns the parts of all ranks, concatenated along the axis, with zeros for padding: sharding the result evenly
// over a mesh axis gives each rank its part. For a nil cut it returns t. It is an error if the cut does not fit the
// tensor or its elements are smaller than a byte.
func (c *Cut) Stack(t *tensors.Tensor) (*tensors.Tensor, error) {
	if c == nil {
		return t, nil
	}
	return c.taken(t, slices.Concat(c.Index...))
}

// Take returns the part of one rank, with zeros for padding. It returns errors as [Cut.Stack] does. The cut must not be
// nil.
func (c *Cut) Take(t *tensors.Tensor, rank int) (*tensors.Tensor, error) {
	return c.taken(t, c.Index[rank])
}

// taken returns some indices of a full tensor, with zeros for padding.
func (c *Cut) taken(t *tensors.Tensor, indices []int) (*tensors.Tensor, error) {
	if err := c.check(t.Shape().Dimensions); err != nil {
		return nil, fmt.Errorf("params: the cut of a tensor of shape %s: %w", t.Shape(), err)
	}
	return c.copied(t, len(indices), func(move func(to, from int)) {
		for k, i := range indices {
			if i >= 0 {
				move(k, i)
			}
		}
	})
}

// Join is the inverse of [Cut.Stack], for a full axis of the given size; each index is taken from the first rank that
// has it. For a nil cut it returns the tensor. It is an error if the tensor is not a stack of this cut's parts, the cut
// does not fit the size, or elements are smaller than a byte.
func (c *Cut) Join(stacked *tensors.Tensor, size int) (*tensors.Tensor, error) {
	if c == nil {
		return stacked, nil
	}
	shape := stacked.Shape()
	if c.Axis < 0 || c.Axis >= shape.Rank() || size < 1 {
		return nil, fmt.Errorf("params: a tensor of shape %s cannot be joined along axis %d to %d indices: choose one "+
			"of its axes and at least 1", shape, c.Axis, size)
	}
	full := c.along(shape, size)
	if err := c.check(full.Dimensions); err != nil {
		return nil, fmt.Errorf("params: the cut of a tensor of shape %s: %w", full, err)
	}
	if want := c.along(shape, c.Ranks()*c.Length()); !shape.Equal(want) {
		return nil, fmt.Errorf("params: a tensor of shape %s is not a stack of %d ranks with %d indices each along "+
			"axis %d: give one of shape %s", shape, c.Ranks(), c.Length(), c.Axis, want)
	}
	return c.copied(stacked, size, func(move func(to, from int)) {
		for rank, list := range c.Index {
			for k, counts := range c.Counted(rank) {
				if counts {
					move(list[k], rank*c.Length()+k)
				}
			}
		}
	})
}

// copied returns a tensor with another length of the cut's axis. each calls move for the indices to be copied; the
// others are zero.
func (c *Cut) copied(t *tensors.Tensor, length int, each func(move func(to, from int))) (*tensors.Tensor, error) {
	old := t.Shape()
	if old.DType.IsPacked() {
		return nil, fmt.Errorf("params: a tensor of shape %s has elements of less than a byte: convert it to cut it",
			old)
	}
	result := tensors.FromShape(c.along(old, length))
	outer, run := 1, old.DType.Size() // run: contiguous bytes per index
	for axis, d := range old.Dimensions {
		switch {
		case axis < c.Axis:
			outer *= d
		case axis > c.Axis:
			run *= d
		}
	}
	var inner error
	err := t.ConstBytes(func(from []byte) {
		inner = result.MutableBytes(func(to []byte) {
			for o := range outer {
				to, from := to[o*length*run:], from[o*old.Dimensions[c.Axis]*run:]
				each(func(k, i int) { copy(to[k*run:(k+1)*run], from[i*run:]) })
			}
		})
	})
	if err = errors.Join(err, inner); err != nil {
		return nil, fmt.Errorf("params: cutting a tensor of shape %s: %w", old, err)
	}
	return result, nil
}
