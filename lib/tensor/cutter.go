package tensor

import (
	"fmt"

	"github.com/shardbook/shardbook/lib/params"
)

// Cutter cuts one parameter for several ranks. Its errors name the parameter. The cutters here count axes from 0, and
// from the end with negative ones: −1, the last, is that of the outputs both of a matrix (in,out) and of its bias
// (out).
type Cutter func(s params.Spec, ranks int) (*params.Cut, error)

// Even cuts an axis into equal runs, one for each rank in order. Ranks that do not divide it are an error.
func Even(axis int) Cutter { return runs(axis, false) }

// Padded is Even that rounds the length of the runs up: the last ranks have padding. It is for the vocabulary
// ([Group.Embed], [Group.CrossEntropy]).
func Padded(axis int) Cutter { return runs(axis, true) }

func runs(axis int, pad bool) Cutter {
	return func(s params.Spec, ranks int) (*params.Cut, error) {
		axis, err := axisOf(s, axis)
		if err != nil {
			return nil, err
		}
		cut, err := params.EvenCut(axis, s.Shape.Dim(axis), ranks, pad)
		if err != nil {
			return nil, fmt.Errorf("tensor: parameter %v: %w", s, err)
		}
		return cut, nil
	}
}

// Heads cuts an axis that lists the query heads of attention, then so many heads of keys, then as many of values, each
// head so wide; with keys 0 query heads alone. Each rank has an equal run of the query heads and the key and value
// heads that these attend with (query head h with key head h·keys/queries), in the same order, so its part is that of a
// smaller attention. With more ranks than key heads, ranks/keys neighbours have the same one: see [Group.SumCopies].
//
// It is an error if the axis has another size, if keys do not divide queries, if ranks do not divide queries, or if
// neither ranks divide keys nor keys ranks.
func Heads(axis, queries, keys, width int) Cutter {
	return func(s params.Spec, ranks int) (*params.Cut, error) {
		axis, err := axisOf(s, axis)
		if err != nil {
			return nil, err
		}
		size := s.Shape.Dim(axis)
		switch {
		case queries < 1 || keys < 0 || width < 1 || size != (queries+2*keys)*width:
			return nil, fmt.Errorf("tensor: axis %d of parameter %v cannot have %d query heads, %d of keys and as "+
				"many of values, each %d wide: "+
				"choose numbers that give %d", axis, s, queries, keys, width, size)
		case ranks < 1 || queries%ranks != 0:
			return nil, fmt.Errorf("tensor: parameter %v: %d ranks cannot share %d query heads evenly: choose a "+
				"number of ranks that divides them",
				s, ranks, queries)
		case keys > 0 && queries%keys != 0:
			return nil, fmt.Errorf("tensor: parameter %v: %d query heads cannot share %d key heads evenly: choose key "+
				"heads that divide them",
				s, queries, keys)
		case keys > 0 && keys%ranks != 0 && ranks%keys != 0:
			return nil, fmt.Errorf("tensor: parameter %v: %d ranks cannot share %d key heads: choose ranks that "+
				"divide them, or are a multiple",
				s, ranks, keys)
		}
		cut := &params.Cut{Axis: axis, Index: make([][]int, ranks)}
		for r := range ranks {
			add := func(first, heads int) {
				for i := first * width; i < (first+heads)*width; i++ {
					cut.Index[r] = append(cut.Index[r], i)
				}
			}
			add(r*queries/ranks, queries/ranks)
			if keys > 0 {
				first, heads := r*keys/ranks, max(1, keys/ranks)
				add(queries+first, heads)
				add(queries+keys+first, heads)
			}
		}
		return cut, nil
	}
}

// axisOf counts a parameter's axis from 0.
func axisOf(s params.Spec, axis int) (int, error) {
	rank := s.Shape.Rank()
	if axis < -rank || axis >= rank {
		return 0, fmt.Errorf("tensor: parameter %v has no axis %d to cut: choose one from %d to %d", s, axis, -rank, rank-1)
	}
	return (axis + rank) % rank, nil
}
