package tensor

import (
	"fmt"
	"path"
	"strings"

	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/xla"
)

// Rule says how to shard the parameters whose names match a pattern of path.Match, such as "h*.up.w".
type Rule struct {
	Name string
	Cut  Cutter
}

// Rules say how to shard a model: the first rule that matches a parameter's name applies. Parameters without a rule are
// replicated.
type Rules []Rule

// Cuts returns how each parameter of a tree is sharded over ranks, in the tree's order; nil means replicated. It
// returns an error for an invalid pattern and for a [Cutter]'s error. A rule may match no parameter.
func (r Rules) Cuts(tree params.Tree, ranks int) ([]*params.Cut, error) {
	if ranks < 1 {
		return nil, fmt.Errorf("tensor: %d ranks: choose at least 1", ranks)
	}
	cuts := make([]*params.Cut, len(tree))
	for i, spec := range tree {
		var err error
		if cuts[i], err = r.cut(spec, ranks); err != nil {
			return nil, err
		}
	}
	return cuts, nil
}

// Auto returns a function for train.NewAuto that gives the placement of each entry of a run's state along a mesh axis
// of the given number of ranks; the compiler then chooses the communication. A parameter is sharded in contiguous
// chunks along the axis of its rule, and an optimizer state like its parameter. A parameter is replicated if the ranks
// do not divide its axis or its rule returns an error. Attention heads may be split over devices, since the compiler's
// program computes the same for any placement.
func (r Rules) Auto(axis string, ranks int) func(i int, s params.Spec) xla.Placement {
	return func(_ int, s params.Spec) xla.Placement {
		cut, err := r.cut(s, ranks)
		if dot := strings.LastIndex(s.Name, "."); cut == nil && err == nil && dot >= 0 {
			cut, err = r.cut(params.Spec{Name: s.Name[:dot], Shape: s.Shape}, ranks)
		}
		if err != nil || cut == nil || s.Shape.Dim(cut.Axis)%ranks != 0 {
			return xla.Replicated()
		}
		return xla.Shard(cut.Axis, axis)
	}
}

// cut shards a parameter by the first rule that matches.
func (r Rules) cut(s params.Spec, ranks int) (*params.Cut, error) {
	for _, rule := range r {
		switch matches, err := path.Match(rule.Name, s.Name); {
		case err != nil:
			return nil, fmt.Errorf("tensor: the rule for %q: %w: see path.Match", rule.Name, err)
		case matches && ranks > 1:
			return rule.Cut(s, ranks)
		case matches:
			return nil, nil
		}
	}
	return nil, nil
}

// Cutter shards one parameter over ranks. Its errors name the parameter. Negative axes count from the end: axis −1 is
// the output axis of a matrix (in,out) and of its bias (out).
type Cutter func(s params.Spec, ranks int) (*params.Cut, error)

// Even shards an axis into equal contiguous chunks, one for each rank in order. It returns an error if the ranks do not
// divide the axis.
func Even(axis int) Cutter { return chunks(axis, false) }

// Whole does not shard the parameter: every rank has it, or something else shards it.
func Whole(params.Spec, int) (*params.Cut, error) { return nil, nil }

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
