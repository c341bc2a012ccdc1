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
