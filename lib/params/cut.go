package params

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"
)

// Cut says what each of several ranks has of an array: some of the indices along one axis, and all along the others. A
// nil *Cut is the whole array on every rank.
//
// [Cut.Validate] says what a cut must be; the other methods take that for granted unless they return an error.
type Cut struct {
	Axis int // from 0
	// Index lists for each rank the indices of the whole that it has, in its own order; −1 is padding, whose values are
	// 0. All ranks have equally many. Each index is with at least one rank; where several have one, they keep equal
	// copies.
	Index [][]int
}

// EvenCut cuts an axis of so many indices into equal runs, one for each rank, in order. With pad the last ranks may
// have padding; without, ranks that do not divide the axis are an error.
func EvenCut(axis, size, ranks int, pad bool) (*Cut, error) {
	if ranks < 1 || size < 1 || !pad && size%ranks != 0 {
		return nil, fmt.Errorf("params: %d indices along axis %d cannot be cut evenly for %d ranks: choose a number "+
			"of ranks that divides them",
			size, axis, ranks)
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

// Validate returns an error if the cut does not fit the parameter: its axis is none of the parameter's; there are no
// ranks; they have none or not equally many indices; an index is neither one of the axis nor padding; a rank has one
// twice, or no rank has it. A nil cut fits all.
func (c *Cut) Validate(s Spec) error {
	if err := c.check(s.Shape.Dimensions); err != nil {
		return fmt.Errorf("params: the cut of %q: %w", s.Name, err)
	}
	return nil
}

func (c *Cut) check(whole []int) error {
	switch {
	case c == nil:
		return nil
	case c.Axis < 0 || c.Axis >= len(whole):
		return fmt.Errorf("its axis is %d, and the dimensions are %v: choose one of the axes, from 0, or a "+
			"nil cut for a scalar",
			c.Axis, whole)
	case len(c.Index) == 0 || len(c.Index[0]) == 0:
		return fmt.Errorf("it has the indices %v: give at least one rank, and each at least one index", c.Index)
	}
	size := whole[c.Axis]
	holder := slices.Repeat([]int{-1}, size) // the last rank that has the index
	for rank, list := range c.Index {
		if len(list) != c.Length() {
			return fmt.Errorf("rank %d has %d indices and rank 0 has %d: fill up with −1, which is padding", rank,
				len(list), c.Length())
		}
		for _, i := range list {
			switch {
			case i < -1 || i >= size:
				return fmt.Errorf("rank %d has index %d along axis %d of the dimensions %v: choose from 0 to %d, or −1 for padding",
					rank, i, c.Axis, whole, size-1)
			case i >= 0 && holder[i] == rank:
				return fmt.Errorf("rank %d has index %d twice: give it once", rank, i)
			case i >= 0:
				holder[i] = rank
			}
		}
	}
	if i := slices.Index(holder, -1); i >= 0 {
		return fmt.Errorf("no rank has index %d along axis %d of the dimensions %v: give it to one", i, c.Axis, whole)
	}
	return nil
}

// Ranks is the number of ranks.
func (c *Cut) Ranks() int { return len(c.Index) }

// Length is the number of indices that each rank has, padding included.
func (c *Cut) Length() int { return len(c.Index[0]) }

// Counted says for each of a rank's indices whether this rank is the first that has it; padding is false. So what is
// counted on all ranks together is each index once. The cut must not be nil.
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

// Part is the shape of what a rank has of an array: the array's own for a nil cut.
func (c *Cut) Part(whole shapes.Shape) shapes.Shape {
	if c == nil {
		return whole
	}
	return c.along(whole, c.Length())
}

// along is a shape with another length of the cut's axis.
func (c *Cut) along(shape shapes.Shape, length int) shapes.Shape {
	other := shape.Clone()
	other.Dimensions[c.Axis] = length
	return other
}

// Stack returns what all ranks have, one after another along the axis, with zeros for padding: what a mesh that shards
// the axis evenly is given. For a nil cut it is t itself. A cut that does not fit the tensor is an error, and so are
// elements of less than a byte.
func (c *Cut) Stack(t *tensors.Tensor) (*tensors.Tensor, error) {
	if c == nil {
		return t, nil
	}
	whole := t.Shape()
	if err := c.check(whole.Dimensions); err != nil {
		return nil, fmt.Errorf("params: the cut of a tensor of shape %s: %w", whole, err)
	}
	from := slices.Concat(c.Index...)
	return c.copied(t, len(from), func(move func(to, from int)) {
		for k, i := range from {
			if i >= 0 {
				move(k, i)
			}
		}
	})
}

// Join returns the whole of what [Cut.Stack] returned, whose axis has so many indices; each is taken from the first
// rank that has it. For a nil cut it is the tensor itself, whatever the size. A tensor that the ranks cannot have is an
// error, and so are a cut that does not fit the size and elements of less than a byte.
func (c *Cut) Join(stacked *tensors.Tensor, size int) (*tensors.Tensor, error) {
	if c == nil {
		return stacked, nil
	}
	shape := stacked.Shape()
	if c.Axis < 0 || c.Axis >= shape.Rank() || size < 1 {
		return nil, fmt.Errorf("params: a tensor of shape %s cannot be joined along axis %d to %d indices: choose one "+
			"of its axes and at least 1",
			shape, c.Axis, size)
	}
	whole := c.along(shape, size)
	if err := c.check(whole.Dimensions); err != nil {
		return nil, fmt.Errorf("params: the cut of a tensor of shape %s: %w", whole, err)
	}
	if want := c.along(shape, c.Ranks()*c.Length()); !shape.Equal(want) {
		return nil, fmt.Errorf("params: a tensor of shape %s is no stack of %d ranks with %d indices each along axis "+
			"%d: give one of shape %s",
			shape, c.Ranks(), c.Length(), c.Axis, want)
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

// copied returns a tensor with another length of the cut's axis, into which each calls move for the indices to be
// copied; the others are zeros.
func (c *Cut) copied(t *tensors.Tensor, length int, each func(move func(to, from int))) (*tensors.Tensor, error) {
	old := t.Shape()
	if old.DType.IsPacked() {
		return nil, fmt.Errorf("params: a tensor of shape %s has elements of less than a byte: convert it to cut it", old)
	}
	result := tensors.FromShape(c.along(old, length))
	outer, run := 1, old.DType.Size() // bytes that lie together
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
		return nil, fmt.Errorf("params: cut a tensor of shape %s: %w", old, err)
	}
	return result, nil
}
