package tensor

import (
	"fmt"

	"github.com/shardbook/shardbook/lib/params"
)

// Cutter shards one parameter over ranks. Its errors name the parameter. Negative axes count from the end: axis −1 is
// the output axis of a matrix (in,out) and of its bias (out).
type Cutter func(s params.Spec, ranks int) (*params.Cut, error)

// Even shards an axis into equal contiguous chunks, one for each rank in order. It returns an error if the ranks do not
// divide the axis.
func Even(axis int) Cutter { return chunks(axis, false) }

// Padded is [Even] for any length: it pads the last ranks' chunks. Use it for the vocabulary ([Group.Embed],
// [Group.CrossEntropy]).
func Padded(axis int) Cutter { return chunks(axis, true) }

func chunks(axis int, pad bool) Cutter {
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

// Heads shards an axis of attention heads of the given width: query heads, then key heads, then as many value heads, or
// query heads alone if keys is 0. Each rank has an equal chunk of the query heads, and the key and value heads that
// these use (query head h uses key head h·keys/queries), so that its shard is a smaller attention. With more ranks than
// key heads, ranks/keys neighbours have the same key head; see [Group.SumCopies].
//
// It returns an error if the axis has another size, if keys or ranks do not divide queries, or if neither of keys and
// ranks divides the other.
func Heads(axis, queries, keys, width int) Cutter {
	return func(s params.Spec, ranks int) (*params.Cut, error) {
		axis, err := axisOf(s, axis)
		if err != nil {
			return nil, err
		}
		size := s.Shape.Dim(axis)
		switch {
		case queries < 1 || keys < 0 || width < 1 || size != (queries+2*keys)*width:
			return nil, fmt.Errorf("tensor: axis %d of parameter %v cannot have %d query heads, %d key heads and as "+
				"many value heads of width %d: choose numbers that give %d", axis, s, queries, keys, width, size)
		case ranks < 1 || queries%ranks != 0:
			return nil, fmt.Errorf("tensor: parameter %v: %d ranks cannot share %d query heads evenly: choose a "+
				"number of ranks that divides them", s, ranks, queries)
		case keys > 0 && queries%keys != 0:
			return nil, fmt.Errorf("tensor: parameter %v: %d query heads cannot share %d key heads evenly: choose a "+
				"number of key heads that divides them", s, queries, keys)
		case keys > 0 && keys%ranks != 0 && ranks%keys != 0:
			return nil, fmt.Errorf("tensor: parameter %v: %d ranks cannot share %d key heads evenly: choose a divisor "+
				"or a multiple of them", s, ranks, keys)
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

// axisOf returns a parameter's axis, counted from 0.
func axisOf(s params.Spec, axis int) (int, error) {
	rank := s.Shape.Rank()
	if axis < -rank || axis >= rank {
		return 0, fmt.Errorf("tensor: parameter %v has no axis %d: choose one from %d to %d", s, axis, -rank, rank-1)
	}
	return (axis + rank) % rank, nil
}
