package optim

import (
	"errors"
	"math"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
)

// SGDOptimizer is stochastic gradient descent (Robbins & Monro 1951, "A Stochastic Approximation Method"), optionally
// with heavy-ball momentum (Polyak 1964, "Some methods of speeding up the convergence of iteration methods") or
// Nesterov's (as in Sutskever et al. 2013, "On the importance of initialization and momentum in deep learning", §2).
// Make it with [SGD]. For gradient g:
//
//	b ← Momentum·b + g
//	w ← w − LR·(b + WeightDecay·w)                  with Nesterov: g + Momentum·b in place of b
//
// Its state is b, named "momentum", of the parameter's shape; without momentum it has none.
type SGDOptimizer struct {
	// LR is the learning rate, which multiplies the gradient. At least 0.
	LR float64
	// Momentum is the fraction of the last update that is added to the next, in [0,1). Each gradient acts
	// 1/(1−Momentum) times in total, so a larger momentum needs a smaller LR.
	Momentum float64
	// Nesterov uses Nesterov's momentum; Momentum must not be 0.
	Nesterov bool
	// WeightDecay·LR is the fraction by which each element shrinks in one step. At least 0.
	WeightDecay float64
}

// SGD returns the optimizer with the given learning rate and no momentum.
func SGD(lr float64) SGDOptimizer { return SGDOptimizer{LR: lr} }

// Validate implements Optimizer.
func (r SGDOptimizer) Validate() error {
	if r.Nesterov && r.Momentum == 0 {
		return errors.New("optim: SGD.Nesterov is set and SGD.Momentum is 0: set a momentum such as 0.9")
	}
	return checkSettings("SGD", setting{"LR", r.LR, 0, math.Inf(1)}, setting{"Momentum", r.Momentum, 0, 1},
		setting{"WeightDecay", r.WeightDecay, 0, math.Inf(1)})
}

// States implements Optimizer: "momentum" with momentum, nothing without.
func (r SGDOptimizer) States(param params.Spec, part Part) []State {
	if r.Momentum == 0 {
		return nil
	}
	return Elementwise(param, part, "momentum")
}

// Update implements Optimizer. It does not use the step.
func (r SGDOptimizer) Update(u Update) (*graph.Node, []*graph.Node) {
	w, g := u.begin(r)
	change, states := g, []*graph.Node(nil)
	if r.Momentum != 0 {
		b := graph.Add(graph.MulScalar(u.States[0], r.Momentum), g)
		change, states = b, []*graph.Node{b}
		if r.Nesterov {
			change = graph.Add(g, graph.MulScalar(b, r.Momentum))
		}
	}
	if r.WeightDecay != 0 {
		change = decayed(change, w, r.WeightDecay)
	}
	return u.descend(w, change, r.LR), states
}

// LionOptimizer is Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", algorithm 2), which steps
// by the sign of a running mean of gradients; make it with [Lion]. For gradient g:
//
//	w ← w − LR·( sign(β₁m + (1−β₁)g) + WeightDecay·w )
//	m ← β₂m + (1−β₂)g
//
// Its state is "m", of the parameter's shape.
type LionOptimizer struct {
	// LR is the learning rate, by which every element changes in each step. The paper (§5) recommends a rate 3 to 10
	// times smaller than for AdamW, and a weight decay larger by the same factor. At least 0.
	LR float64
	// Beta1 weighs the running mean against the new gradient in a step, Beta2 in the stored mean; both in [0,1).
	Beta1, Beta2 float64
	// WeightDecay·LR is the fraction by which each element shrinks in one step. At least 0.
	WeightDecay float64
}

// Lion returns the optimizer with the given learning rate, betas 0.9 and 0.99 and weight decay 0.1: ten times that of
// [AdamW], for a tenth of its learning rate.
func Lion(lr float64) LionOptimizer {
	return LionOptimizer{LR: lr, Beta1: 0.9, Beta2: 0.99, WeightDecay: 0.1}
}

// Validate implements Optimizer.
func (r LionOptimizer) Validate() error {
	return checkSettings("Lion", setting{"LR", r.LR, 0, math.Inf(1)}, setting{"Beta1", r.Beta1, 0, 1},
		setting{"Beta2", r.Beta2, 0, 1}, setting{"WeightDecay", r.WeightDecay, 0, math.Inf(1)})
}

// States implements Optimizer: "m".
func (r LionOptimizer) States(param params.Spec, part Part) []State {
	return Elementwise(param, part, "m")
}

// Update implements Optimizer. It does not use the step.
func (r LionOptimizer) Update(u Update) (*graph.Node, []*graph.Node) {
	w, g := u.begin(r)
	m := u.States[0]
	direction := graph.Sign(running(m, g, r.Beta1))
	return u.descend(w, decayed(direction, w, r.WeightDecay), r.LR), []*graph.Node{running(m, g, r.Beta2)}
}
