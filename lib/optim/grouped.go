package optim

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
)

// Group is a parameter group of [Grouped]: the parameters for which Has returns true, and their optimizer.
type Group struct {
	Has       func(param params.Spec) bool
	Optimizer Optimizer
}

// Grouped returns an optimizer that uses, for each parameter, the optimizer of the first group whose Has returns true,
// and rest for the others. For example, without weight decay for normalization scales and biases:
//
//	Grouped(AdamW(3e-4), Group{Named("*.g", "*.b"), Adam(3e-4)})
func Grouped(rest Optimizer, groups ...Group) Optimizer { return grouped{rest, slices.Clone(groups)} }

// Named selects parameters by name. A name may begin with "*", which matches anything.
func Named(names ...string) func(params.Spec) bool {
	return func(param params.Spec) bool {
		for _, name := range names {
			if end, any := strings.CutPrefix(name, "*"); name == param.Name || any &&
				strings.HasSuffix(param.Name, end) {
				return true
			}
		}
		return false
	}
}

type grouped struct {
	rest   Optimizer
	groups []Group
}

func (r grouped) Validate() error {
	if r.rest == nil {
		return errors.New("optim: Grouped has no optimizer for the rest: give one")
	}
	for i, g := range r.groups {
		if g.Has == nil || g.Optimizer == nil {
			return fmt.Errorf("optim: group #%d lacks its Has or its Optimizer: give both", i)
		}
		if err := g.Optimizer.Validate(); err != nil {
			return fmt.Errorf("optim: group #%d: %w", i, err)
		}
	}
	return r.rest.Validate()
}

// of returns a parameter's optimizer; nil if Grouped has none for the rest.
func (r grouped) of(param params.Spec) Optimizer {
	for _, g := range r.groups {
		if g.Has != nil && g.Has(param) {
			return g.Optimizer
		}
	}
	return r.rest
}

func (r grouped) States(param params.Spec, part Part) []State {
	if o := r.of(param); o != nil {
		return o.States(param, part)
	}
	return nil
}

func (r grouped) block(param params.Spec) int { return blockOf(r.of(param), param) }

func (r grouped) Update(u Update) (*graph.Node, []*graph.Node) {
	if err := r.Validate(); err != nil {
		panic(err)
	}
	return r.of(u.Spec).Update(u)
}
