package tensor

import (
	"fmt"
	"path"
	"strings"

	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/xla"
)

// Rule says how ranks share the parameters whose names match a pattern of path.Match: "h*.up.w".
type Rule struct {
	Name string
	Cut  Cutter
}

// Rules say how ranks share a model. Of several that match a name the first counts; what none matches, every rank has
// whole.
type Rules []Rule

// Cuts returns what each rank has of each entry of a tree, in the tree's order; nil is an entry that every rank has
// whole, as with one rank all are. A rule that matches nothing is no error, since models differ in what parameters they
// have; a pattern that path.Match refuses is one, and so is a cutter's.
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

// Auto returns how each entry of a run's state lies along a mesh axis of so many ranks for train.NewAuto, whose
// compiler chooses the communication: a parameter is cut along the axis of its rule, in runs of indices next to each
// other, and whole where the ranks do not divide the axis or the rule has an error; what an optimizer keeps for it,
// named below it, is cut by the same rule. The compiler knows whole arrays only, so which rank has which index does not
// change what is computed: heads need not be together.
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

// cut returns what the first rule that matches makes of a parameter.
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
