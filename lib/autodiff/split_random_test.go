package autodiff_test

import (
	"math/rand/v2"
	"testing"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/autodiff"
)

const side = 3 // of the matrices that random graphs are made of

// steps are what random graphs are made of: each makes a matrix of two.
var steps = []func(a, b *node) *node{
	func(a, b *node) *node { return graph.Dot(a, b).Product() },
	func(a, b *node) *node { return graph.Dot(a, graph.Transpose(b, 0, 1)).Product() },
	graph.Add, graph.Mul, graph.Sub, graph.Max,
	func(a, _ *node) *node { return graph.Tanh(a) },
	func(a, b *node) *node { return graph.Where(graph.GreaterThan(a, b), a, graph.Sin(b)) },
	func(a, b *node) *node { return graph.Mul(a, graph.ReduceAndKeep(b, graph.ReduceMax, -1)) },
	func(a, b *node) *node {
		return graph.Slice(graph.Concatenate(nodes{a, b}, 0), graph.AxisRange(side-1, 2*side-1))
	},
	func(a, b *node) *node { return graph.Add(a, graph.StopGradient(graph.Dot(b, b).Product())) },
	func(a, b *node) *node { return graph.Mul(a, graph.StopGradient(b)) },
	func(a, _ *node) *node {
		return graph.IdentityWithCustomGradient(graph.Cos(a),
			func(x, v *node) *node { return graph.Mul(v, graph.Tanh(x)) })
	},
	func(a, b *node) *node { return graph.Sin(graph.Add(a, b).Checkpoint()) },
	func(a, b *node) *node { return graph.Dot(graph.Sin(a), b).Product().StopCheckpoint() },
	func(a, b *node) *node { return graph.OptimizationBarriers(graph.Cos(a), graph.Dot(a, b).Product())[1] },
	func(a, b *node) *node { // with products in the function, its gradient, and between them
		out := autodiff.Custom(nodes{a, b}, func(in nodes) nodes {
			d := graph.Dot(in[0], in[1]).Product()
			return nodes{graph.Sin(d), d}
		}, func(in, out, v nodes) nodes {
			inner := graph.Mul(graph.Add(graph.Mul(v[0], graph.Cos(out[1])), v[1]), out[0])
			return nodes{graph.Dot(inner, in[1]).Product(), graph.Dot(inner, graph.Sin(in[0])).Product()}
		})
		return graph.Add(out[0], graph.Tanh(out[1]))
	},
}

// randomPiece is a function of three matrices and an integer with two outputs.
func randomPiece(seed uint64) piece {
	p := piece{name: "random", fn: func(in nodes) nodes {
		r := rand.New(rand.NewPCG(seed, 2))
		made := nodes{in[0], in[1], graph.Add(in[2], graph.ConvertDType(in[3], in[2].DType()))}
		pick := func() *node { return made[len(made)-1-r.IntN(min(4, len(made)))] }
		for range 4 + r.IntN(12) {
			made = append(made, graph.Tanh(steps[r.IntN(len(steps))](pick(), pick())))
		}
		return nodes{made[len(made)-1], graph.ReduceAllSum(pick())}
	}}
	for i := range 3 {
		p.in = append(p.in, random(seed+uint64(i), side, side))
	}
	p.in = append(p.in, tensors.FromScalar(int32(seed%3)))
	p.v = []*tensors.Tensor{random(seed+5, side, side), tensors.FromScalar(float32(0.5))}
	return p
}

// Random graphs have the gradients that GoMLX derives, to the bit if operations run as they are written.
func TestSplitRandom(t *testing.T) {
	keeping := 0
	for seed := range uint64(150) {
		p := randomPiece(seed)
		got, kept := p.inTwo(t, devicetest.WithBarriers())
		sameBits(t, got, p.inOne(t, devicetest.WithBarriers()))
		if len(kept) > 1 {
			keeping++
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if keeping < 100 {
		t.Errorf("only %d of the graphs keep several values", keeping)
	}
}
