package optim

import (
	"math"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
)

// AdamWOptimizer is Adam (Kingma & Ba 2015, "Adam: A Method for Stochastic Optimization", algorithm 1) with decoupled
// weight decay (Loshchilov & Hutter 2019, "Decoupled Weight Decay Regularization", algorithm 2); make it with [AdamW]
// or [Adam] and change its settings. For gradient g at step t = 1, 2, …:
//
//	m ← β₁m + (1−β₁)g
//	v ← β₂v + (1−β₂)g²
//	w ← w − LR·( m/(1−β₁ᵗ) / (√(v/(1−β₂ᵗ)) + Eps) + WeightDecay·w )
//
// Its states are "m" and "v", both of the parameter's shape.
type AdamWOptimizer struct {
	// LR is the learning rate, about the largest change of an element in one step; for an element whose gradient is
	// rarely not 0, up to (1−β₁)/√(1−β₂) times that (Kingma & Ba 2015, §2.1). At least 0.
	LR float64
	// Beta1 and Beta2 are the decay of the running means of the gradient and of its square, in [0,1). Such a mean
	// averages about 1/(1−β) steps.
	Beta1, Beta2 float64
	// Eps is added to the root of the mean square, so that a small one does not cause a large step. At least 0; with 0,
	// an element whose gradient has always been 0 becomes NaN.
	Eps float64
	// WeightDecay·LR is the fraction by which each element shrinks in one step. At least 0; 0 is plain Adam.
	WeightDecay float64
}

// AdamW returns the optimizer with the given learning rate, betas 0.9 and 0.999, eps 1e-8, and weight decay 0.01 for
// every parameter. The reference model is trained with a learning rate of 3e-4.
func AdamW(lr float64) AdamWOptimizer {
	return AdamWOptimizer{LR: lr, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01}
}

// Adam is [AdamW] without weight decay.
func Adam(lr float64) AdamWOptimizer {
	r := AdamW(lr)
	r.WeightDecay = 0
	return r
}

// Validate implements Optimizer.
func (r AdamWOptimizer) Validate() error { return r.validate("AdamW") }

func (r AdamWOptimizer) validate(name string) error {
	return checkSettings(name, setting{"LR", r.LR, 0, math.Inf(1)},
		setting{"Beta1", r.Beta1, 0, 1}, setting{"Beta2", r.Beta2, 0, 1},
		setting{"Eps", r.Eps, 0, math.Inf(1)}, setting{"WeightDecay", r.WeightDecay, 0, math.Inf(1)})
}

// States implements Optimizer: "m" and "v".
func (r AdamWOptimizer) States(param params.Spec, part Part) []State {
	return Elementwise(param, part, "m", "v")
}

// Update implements Optimizer.
func (r AdamWOptimizer) Update(u Update) (*graph.Node, []*graph.Node) {
	w, g := u.begin(r)
	change, m, v := r.change(w, g, u.States[0], u.States[1], u.Step)
	return u.descend(w, change, r.LR), []*graph.Node{m, v}
}

// change returns the update, which the learning rate multiplies, and the new moments.
func (r AdamWOptimizer) change(w, g, m, v, step *graph.Node) (change, newM, newV *graph.Node) {
	m, v = running(m, g, r.Beta1), running(v, graph.Square(g), r.Beta2)
	mean := graph.Div(m, correction(r.Beta1, step, m.DType()))
	square := graph.Div(v, correction(r.Beta2, step, v.DType()))
	direction := graph.Div(mean, graph.AddScalar(graph.Sqrt(square), r.Eps))
	return decayed(direction, w, r.WeightDecay), m, v
}

// correction returns 1−βᵗ, the bias of a running mean that started at zero after t steps. It is computed in float64: in
// float32, 1−0.999¹ would have only four correct digits, and half precision cannot count the steps.
func correction(beta float64, step *graph.Node, dtype dtypes.DType) *graph.Node {
	t := graph.ConvertDType(step, dtypes.Float64)
	power := graph.Pow(graph.Scalar(step.Graph(), dtypes.Float64, beta), t)
	return graph.ConvertDType(graph.OneMinus(power), dtype)
}
