package gpt

import (
	"math"

	"github.com/gomlx/gomlx/core/graph"
)

// Linear returns x·w + b for x (…,in), w (in,out) and b (out), of shape (…,out); b may be nil.
// It panics if the shapes do not fit.
func Linear(x, w, b *graph.Node) *graph.Node {
	y := graph.Dot(x, w).General([]int{-1}, nil, []int{0}, nil)
	if b == nil {
		return y
	}
	return graph.Add(y, graph.ExpandLeftToRank(b, y.Rank()))
}

// Epsilon is what [LayerNorm] adds to a variance.
const Epsilon = 1e-5

// LayerNorm returns (x−mean)/√(variance+[Epsilon])·g + b over the last axis of x (…,C), for a scale g and a bias b (C)
// (Ba, Kiros & Hinton 2016, "Layer Normalization"). It panics if the shapes do not fit.
func LayerNorm(x, g, b *graph.Node) *graph.Node {
	centred := graph.Sub(x, graph.ReduceAndKeep(x, graph.ReduceMean, -1))
	variance := graph.ReduceAndKeep(graph.Square(centred), graph.ReduceMean, -1) // (…,1)
	y := graph.Div(centred, graph.Sqrt(graph.AddScalar(variance, Epsilon)))
	return graph.Add(graph.Mul(y, graph.ExpandLeftToRank(g, x.Rank())), graph.ExpandLeftToRank(b, x.Rank()))
}

// GELU returns ½x(1 + tanh(√(2/π)(x + 0.044715x³))), the tanh form of the Gaussian error linear unit (Hendrycks &
// Gimpel 2016, "Gaussian Error Linear Units", §2), elementwise for x of any shape. It panics if x is not a float.
func GELU(x *graph.Node) *graph.Node {
	cubic := graph.Mul(x, graph.AddScalar(graph.MulScalar(graph.Square(x), 0.044715), 1)) // x + 0.044715x³
	return graph.Mul(graph.MulScalar(x, 0.5), graph.AddScalar(graph.Tanh(graph.MulScalar(cubic, math.Sqrt(2/math.Pi))), 1))
}
