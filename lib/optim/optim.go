// Package optim is the update rules of optimizers as pure graph functions: a parameter, its gradient and its state go
// in, the new parameter and state come out.
//
// The rules here are elementwise, so a shard of a parameter with the same shard of its gradient and state gives that
// shard of the result: sharded optimizers call the same functions. (Up to the last bits: XLA fuses a product and a sum
// to one rounding or not as it compiles a shape.) Nothing is stored: a [Rule] lists the state that it keeps for a
// parameter, by name and shape, and the caller holds it.
package optim

import (
	"fmt"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
)

// Rule is the update rule of an optimizer.
type Rule interface {
	// Validate returns an error that names the first setting which is not valid, with its value and what to do.
	Validate() error

	// States lists what the rule keeps between steps for one parameter, or one shard of it, in the order of Update;
	// all of it starts at zero ([params.Zeros]). The names are below the parameter's: "head.w.m" for "head.w".
	States(param params.Spec) params.Tree

	// Update returns the parameter and the states after one step. The gradient has the shape of the parameter, the
	// states those that States lists; step is a scalar of any integer or float type, and is 1 for the first step.
	// It builds a graph, and panics if the rule is not valid or the shapes do not fit.
	Update(param, grad *graph.Node, states []*graph.Node, step *graph.Node) (*graph.Node, []*graph.Node)
}

// States lists the states of all parameters of a tree, parameter by parameter.
func States(r Rule, tree params.Tree) params.Tree {
	var all params.Tree
	for _, s := range tree {
		all = append(all, r.States(s)...)
	}
	return all
}

// Apply updates all parameters of the tree: [Rule.Update] for each, with its part of the states that [States] lists.
// Parameters and gradients are in the order of the tree. It builds a graph, and panics if the lists do not match the
// tree in number or any shape, or the rule is not valid.
func Apply(r Rule, tree params.Tree, values, grads, states []*graph.Node, step *graph.Node) (newValues, newStates []*graph.Node) {
	mustFit("parameters", tree, values)
	mustFit("gradients", tree, grads)
	mustFit("states", States(r, tree), states)
	for i, s := range tree {
		n := len(r.States(s))
		value, state := r.Update(values[i], grads[i], states[:n], step)
		newValues, newStates = append(newValues, value), append(newStates, state...)
		states = states[n:]
	}
	return newValues, newStates
}

// checkUpdate panics if a rule is not valid or its update is given the wrong number of states or wrong shapes.
func checkUpdate(r Rule, param, grad *graph.Node, states []*graph.Node, step *graph.Node) {
	if err := r.Validate(); err != nil {
		panic(err)
	}
	if !grad.Shape().Equal(param.Shape()) {
		panic(fmt.Errorf("optim: the gradient has shape %s, its parameter %s", grad.Shape(), param.Shape()))
	}
	mustFit("states", r.States(params.Spec{Name: "parameter", Shape: param.Shape()}), states)
	if !step.IsScalar() {
		panic(fmt.Errorf("optim: the step has shape %s: it must be a scalar", step.Shape()))
	}
}

// mustFit panics if the nodes differ from the tree in number or any shape.
func mustFit(what string, tree params.Tree, nodes []*graph.Node) {
	if err := params.Check(tree, nodes); err != nil {
		panic(fmt.Errorf("optim: %s: %w", what, err))
	}
}

// setting is one number of a rule and the range it must be in: from least, below limit.
type setting struct {
	name         string
	value        float64
	least, limit float64
}

// checkSettings returns an error that names the first setting out of its range.
func checkSettings(rule string, settings ...setting) error {
	for _, s := range settings {
		if !(s.value >= s.least && s.value < s.limit) { // so that NaN is out of range too
			return fmt.Errorf("optim: %s.%s is %g: set it to at least %g and less than %g",
				rule, s.name, s.value, s.least, s.limit)
		}
	}
	return nil
}
