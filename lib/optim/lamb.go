package optim

import (
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
)

// LAMBOptimizer is LAMB (You et al. 2020, "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes",
// algorithm 2 with φ the identity): Adam with steps proportional to each parameter's norm, for large batches; make it
// with [LAMB]. With AdamW's update c, weight decay included:
//
//	w ← w − LR·‖w‖/‖c‖·c
//
// with Euclidean norms over the full parameter. The quotient is 1 where either norm is 0, as in the authors' code. The
// settings and states are AdamW's; a step changes a parameter by LR times its norm.
type LAMBOptimizer AdamWOptimizer

// LAMB returns the optimizer with the given learning rate, betas 0.9 and 0.999, eps 1e-6 and weight decay 0.01.
func LAMB(lr float64) LAMBOptimizer {
	return LAMBOptimizer{LR: lr, Beta1: 0.9, Beta2: 0.999, Eps: 1e-6, WeightDecay: 0.01}
}

// Validate implements Optimizer.
func (r LAMBOptimizer) Validate() error { return AdamWOptimizer(r).validate("LAMB") }

// States implements Optimizer: "m" and "v".
func (r LAMBOptimizer) States(param params.Spec, part Part) []State {
	return Elementwise(param, part, "m", "v")
}

// Update implements Optimizer.
func (r LAMBOptimizer) Update(u Update) (*graph.Node, []*graph.Node) {
	w, g := u.begin(r)
	change, m, v := AdamWOptimizer(r).change(w, g, u.States[0], u.States[1], u.Step)
	// The quotient of the norms is that of the root mean squares.
	size, length := u.piece().rms(w), u.piece().rms(change)
	either := graph.Equal(graph.Mul(graph.Sign(size), graph.Sign(length)), graph.ScalarZero(w.Graph(), w.DType()))
	trust := graph.Where(either, graph.ScalarOne(w.Graph(), w.DType()), graph.Div(size, length))
	return u.descend(w, graph.Mul(change, trust), r.LR), []*graph.Node{m, v}
}
