package optim

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
)

// Group is a rule for some parameters of a [Grouped] rule: those for which Has returns true.
type Group struct {
	Has       func(whole params.Spec) bool
	Optimizer Optimizer
}

// Grouped returns a rule that uses for each parameter that of the first group which has it, and rest for the others.
// As usual, without weight decay for gains and biases:
//
//	Grouped(AdamW(3e-4), Group{Named("*.g", "*.b"), Adam(3e-4)})
func Grouped(rest Optimizer, groups ...Group) Optimizer { return grouped{rest, slices.Clone(groups)} }

// Named selects the parameters that have one of the names. A name may begin with a "*", which stands for anything.
func Named(names ...string) func(params.Spec) bool {
	return func(whole params.Spec) bool {
		for _, name := range names {
			if end, any := strings.CutPrefix(name, "*"); name == whole.Name || any && strings.HasSuffix(whole.Name, end) {
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
		return errors.New("optim: Grouped has no rule for the rest: give one")
	}
	for i, g := range r.groups {
		if g.Has == nil || g.Optimizer == nil {
			return fmt.Errorf("optim: group #%d lacks its Has or its Rule: give both", i)
		}
		if err := g.Optimizer.Validate(); err != nil {
			return fmt.Errorf("optim: group #%d: %w", i, err)
		}
	}
	return r.rest.Validate()
}

// of returns a parameter's rule, or nil where the rule is not valid.
func (r grouped) of(param params.Spec) Optimizer {
	for _, g := range r.groups {
		if g.Has != nil && g.Has(param) {
			return g.Optimizer
		}
	}
	return r.rest
}

func (r grouped) States(param params.Spec, part Part) []State {
	if rule := r.of(param); rule != nil {
		return rule.States(param, part)
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
