package optim

import (
	"math"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
)

// AdafactorOptimizer is Adafactor (Shazeer & Stern 2018, "Adafactor: Adaptive Learning Rates with Sublinear Memory
// Cost", algorithms 4 and 5), which stores only the row and column means of a matrix's squared gradients; make it with
// [Adafactor]. For the gradient G of a matrix W at step t, with RMS the root mean square over the full parameter:
//
//	β ← 1 − t^−Decay
//	R ← βR + (1−β)·mean over columns of (G² + Eps1)
//	C ← βC + (1−β)·mean over rows of (G² + Eps1)
//	U ← G / √(R·C / mean(R))
//	U ← U / max(1, RMS(U)/Clip)
//	W ← W − ρ·max(Eps2, RMS(W))·U,     ρ = LR, or min(0.01, 1/√t) if LR is 0
//
// The paper sums where this takes means; the factor cancels. Tensors of rank 2 and more are stacks of matrices, in
// their last two axes; the RMS is over all of them. Vectors and scalars store the mean square V of each element
// (algorithm 5).
//
// The states are "rows" and "columns", or "v". With Beta1 there is also "m", the running mean of the updates, which is
// then subtracted from W in their place (as in the authors' Tensor2Tensor implementation; the paper leaves it out).
type AdafactorOptimizer struct {
	// LR is the relative step size ρ: a step changes a parameter by about LR times its root mean square. 0 means
	// min(0.01, 1/√t), which needs no tuning. A schedule multiplies either. At least 0.
	LR float64
	// Absolute makes LR the root mean square of a step, independent of the parameter's own.
	Absolute bool
	// Decay sets how fast the running means forget: at step t they average about the last t^Decay steps. At least 0.
	Decay float64
	// Eps1 is added to squared gradients so that they are never 0. Eps2 is the smallest root mean square that a step is
	// relative to, so that a parameter can leave 0. Both at least 2⁻¹²⁶.
	Eps1, Eps2 float64
	// Clip bounds the root mean square of U; at least 2⁻¹²⁶.
	Clip float64
	// Beta1 is the decay of the running mean of the updates, in [0,1); 0 stores none.
	Beta1 float64
}

// Adafactor returns the optimizer with the given relative step size (0 for the paper's own) and the paper's other
// settings (algorithm 4 and §9): decay 0.8, eps 1e-30 and 1e-3, clipping at 1, and no mean of the updates.
func Adafactor(lr float64) AdafactorOptimizer {
	return AdafactorOptimizer{LR: lr, Decay: 0.8, Eps1: 1e-30, Eps2: 1e-3, Clip: 1}
}

// Validate implements Optimizer.
func (r AdafactorOptimizer) Validate() error {
	const least = 0x1p-126 // XLA may flush smaller numbers to 0
	return checkSettings("Adafactor", setting{"LR", r.LR, 0, math.Inf(1)}, setting{"Decay", r.Decay, 0, math.Inf(1)},
		setting{"Eps1", r.Eps1, least, math.Inf(1)}, setting{"Eps2", r.Eps2, least, math.Inf(1)},
		setting{"Clip", r.Clip, least, math.Inf(1)}, setting{"Beta1", r.Beta1, 0, 1})
}

// States implements Optimizer: "rows" and "columns", or "v"; and "m" with Beta1.
func (r AdafactorOptimizer) States(param params.Spec, part Part) (states []State) {
	p, n, t := pieceOf(param, part), len(param.Shape.Dimensions), computeType(param)
	if n >= 2 {
		states = []State{p.without(n-1).state(param, "rows", t), p.without(n-2).state(param, "columns", t)}
	} else {
		states = Elementwise(param, part, "v")
	}
	if r.Beta1 != 0 {
		states = append(states, Elementwise(param, part, "m")...)
	}
	return states
}

// Update implements Optimizer.
func (r AdafactorOptimizer) Update(u Update) (*graph.Node, []*graph.Node) {
	w, g := u.begin(r)
	p, n := u.piece(), len(u.Spec.Shape.Dimensions)
	square := graph.Square(g)
	var states []*graph.Node
	if n >= 2 {
		rows := r.mean(u, u.States[0], p.mean(square, n-1))
		columns := r.mean(u, u.States[1], p.mean(square, n-2))
		states = []*graph.Node{rows, columns}
		means := p.without(n - 1) // the piece whose last axis is rows
		mean := means.spread(means.mean(rows, n-2), n-2)
		// Divide by one root at a time: the product of all could overflow or underflow float32.
		g = graph.Div(g, p.spread(graph.Sqrt(rows), n-1))
		g = graph.Mul(g, p.spread(graph.Sqrt(mean), n-1))
		g = graph.Div(g, p.spread(graph.Sqrt(columns), n-2))
	} else {
		v := r.mean(u, u.States[0], square)
		states = []*graph.Node{v}
		g = graph.Div(g, graph.Sqrt(v))
	}
	g = graph.Div(g, graph.MaxScalar(graph.DivScalar(p.rms(g), r.Clip), 1))
	change := graph.Mul(g, graph.ConvertDType(r.relativeStep(u.Step), g.DType()))
	if !r.Absolute {
		change = graph.Mul(change, graph.MaxScalar(p.rms(w), r.Eps2))
	}
	if r.Beta1 != 0 {
		if u.Rate != nil { // the mean is of scheduled updates
			change = graph.Mul(change, graph.ConvertDType(u.Rate, change.DType()))
			u.Rate = nil
		}
		change = running(u.States[len(states)], change, r.Beta1)
		states = append(states, change)
	}
	return u.descend(w, change, 1), states
}

// mean is one step of a running mean of squares, to which Eps1 is added; for an x that is already a mean, adding it to
// the mean is the same. The result is at least Eps1; Max restores that where a product underflows.
func (r AdafactorOptimizer) mean(u Update, old, x *graph.Node) *graph.Node {
	t := graph.ConvertDType(u.Step, dtypes.Float64)
	share := graph.ConvertDType(graph.Pow(t, graph.Scalar(t.Graph(), t.DType(), -r.Decay)), x.DType()) // 1−β
	mean := graph.Add(graph.Mul(old, graph.OneMinus(share)), graph.Mul(graph.AddScalar(x, r.Eps1), share))
	return graph.MaxScalar(mean, r.Eps1)
}

// relativeStep is ρ, a scalar.
func (r AdafactorOptimizer) relativeStep(step *graph.Node) *graph.Node {
	t := graph.ConvertDType(step, dtypes.Float64)
	if r.LR != 0 {
		return graph.Scalar(t.Graph(), t.DType(), r.LR)
	}
	return graph.MinScalar(graph.Reciprocal(graph.Sqrt(t)), 0.01)
}
