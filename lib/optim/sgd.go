package optim

import (
	"math"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
)

// SGDRule is stochastic gradient descent (Robbins & Monro 1951, "A Stochastic Approximation Method"), if asked with the
// heavy-ball momentum of Polyak 1964, "Some methods of speeding up the convergence of iteration methods". Make it with
// [SGD]. For gradient g:
//
//	b ← Momentum·b + g
//	w ← w − LR·b
//
// With momentum its state is b, named "momentum", of the parameter's shape and element type; without, it has none.
type SGDRule struct {
	// LR is the learning rate: the share of the gradient by which an element changes in one step. At least 0.
	LR float64
	// Momentum is the share of the last change that goes on, in [0,1). Each gradient acts 1/(1−Momentum) times over,
	// so a larger one wants a smaller LR.
	Momentum float64
}

// SGD returns the rule with the given learning rate and no momentum.
func SGD(lr float64) SGDRule { return SGDRule{LR: lr} }

// Validate implements [Rule].
func (r SGDRule) Validate() error {
	return checkSettings("SGD", setting{"LR", r.LR, 0, math.Inf(1)}, setting{"Momentum", r.Momentum, 0, 1})
}

// States implements [Rule]: "momentum" with momentum, nothing without.
func (r SGDRule) States(param params.Spec) params.Tree {
	if r.Momentum == 0 {
		return nil
	}
	return params.Tree{{Name: param.Name + ".momentum", Shape: param.Shape}}
}

// Update implements [Rule]. The step does not matter.
func (r SGDRule) Update(param, grad *graph.Node, states []*graph.Node, step *graph.Node) (*graph.Node, []*graph.Node) {
	checkUpdate(r, param, grad, states, step)
	if r.Momentum == 0 {
		return graph.Sub(param, graph.MulScalar(grad, r.LR)), nil
	}
	b := graph.Add(graph.MulScalar(states[0], r.Momentum), grad)
	return graph.Sub(param, graph.MulScalar(b, r.LR)), []*graph.Node{b}
}
