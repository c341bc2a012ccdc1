package autodiff_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/autodiff"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/xla"
)

func squared(in nodes) nodes { return nodes{graph.Square(graph.Dot(in[0], in[1]).Product())} }

var both = []int{0, 1}

// Backward computes from the saved activations that it is given: the gradient of (2·x·w)² is 2·v·(2·saved)·2·wᵀ, so it
// is three times as large if saved is.
func TestSplitTakesWhatIsKept(t *testing.T) {
	s := autodiff.Split{Of: both, Fn: func(in nodes) nodes {
		return nodes{graph.Square(graph.MulScalar(graph.Dot(in[0], in[1]).Product(), 2))}
	}}
	x, w, v := random(1, 2, 3), random(2, 3, 4), random(3, 2, 4)
	gradient := func(times float64) [][]float64 {
		return call(t, devicetest.PureGo(), func(in nodes) nodes {
			_, kept := s.Forward(in[:2])
			return s.Backward(in[:2], nodes{graph.MulScalar(kept[0], times)}, in[2:])
		}, x, w, v)
	}
	once, thrice := gradient(1), gradient(3)
	for i := range once {
		for j := range once[i] {
			once[i][j] *= 3
		}
	}
	same(t, "three times kept", thrice, once, 1e-6)
}

// A loop of the gradient may use values from outside: they are saved, too.
func TestSplitLoopInGradient(t *testing.T) {
	fn := func(in nodes) nodes {
		d := graph.OnePlus(graph.Dot(in[0], in[1]).Product()) // whose own gradient does not need the product
		return autodiff.Custom(nodes{d}, func(in nodes) nodes { return nodes{graph.Cos(in[0])} },
			func(in, _, v nodes) nodes { // 4·v·d
				zero := graph.Const(in[0].Graph(), int32(0))
				return xla.While(nodes{zero, graph.ZerosLike(v[0])}, func(s nodes) *node {
					return graph.LessThan(s[0], graph.Const(s[0].Graph(), int32(4)))
				}, func(s nodes) nodes {
					return nodes{graph.Add(s[0], graph.Const(s[0].Graph(), int32(1))),
						graph.Add(s[1], graph.Mul(v[0], in[0]))}
				})[1:]
			})
	}
	p := piece{name: "loop", fn: fn, in: []*tensors.Tensor{random(1, 2, 3), random(2, 3, 4)},
		v: []*tensors.Tensor{random(3, 2, 4)}}
	got, _ := p.inTwo(t, devicetest.One())
	for i, want := range p.inOne(t, devicetest.One()) {
		if d := apart(got[i], want); !(d <= 4*0x1p-24) {
			t.Errorf("result %d differs by %g of its largest element", i, d)
		}
	}
	if f, b, w := p.count(t, "forward", "dot"), p.count(t, "backward", "dot"), p.count(t, "whole", "dot"); f != 1 ||
		b != 2 || w != 3 {
		t.Errorf("%d and %d products in two programs, %d in one; want 1, 2 and 3", f, b, w)
	}
}

// A gradient may use an operation's outputs through the operation, as that of GoMLX's fused attention does: then all
// are saved.
func TestSplitGradientTakesOutputs(t *testing.T) {
	fn := func(in nodes) nodes {
		d := graph.Dot(in[0], in[1]).Product()
		made := graph.OptimizationBarriers(d, graph.Sin(d), graph.Cos(d))
		return nodes{graph.IdentityWithCustomGradient(made[0], func(_, v *node) *node {
			return graph.Mul(v, made[1].CloneWithInputs(made[1].Inputs()...)) // v·sin(d)
		})}
	}
	p := piece{name: "outputs", fn: fn, in: []*tensors.Tensor{random(1, 2, 3), random(2, 3, 4)},
		v: []*tensors.Tensor{random(3, 2, 4)}}
	got, kept := p.inTwo(t, devicetest.WithBarriers())
	sameBits(t, got, p.inOne(t, devicetest.WithBarriers()))
	if len(kept) != 4 { // these, and the product for the gradients of sine and cosine
		t.Errorf("%d values are kept, want 4", len(kept))
	}
	s := autodiff.Split{Fn: fn, Of: both}
	zeros := run(t, devicetest.WithBarriers(), "", func(in nodes) nodes {
		_, kept := s.Forward(in[:2])
		for i, k := range kept {
			kept[i] = graph.ZerosLike(k)
		}
		return s.Backward(in[:2], kept, in[2:])
	}, slices.Concat(p.in, p.v)...)
	if slices.ContainsFunc(values(zeros[0]), func(x float64) bool { return x != 0 }) {
		t.Errorf("gradient %v, want zeros where zeros were kept", zeros[0])
	}
}

// A graph may have calls already: of the same kernel, from a part before. For AutoSharding there are loops in place of
// the kernel. XLA's graph is built here, and not compiled.
func TestSplitSeveralTimes(t *testing.T) {
	p := block("twice", dtypes.Float32, func(c *gpt.Config) { c.Flash = true })
	s := p.split()
	for _, auto := range []bool{false, true} {
		g := graph.NewGraph(devicetest.One(), "")
		if auto {
			mesh := must(devicetest.One().Mesh(xla.Axis("data", 1)))
			if err := g.SetAutoSharding(mesh.DeviceMesh); err != nil {
				t.Fatal(err)
			}
		}
		var in nodes
		for i, x := range p.in {
			in = append(in, graph.Parameter(g, fmt.Sprint("in", i), x.Shape()))
		}
		for range 2 {
			out, kept := s.Forward(in)
			if gradients := s.Backward(in, kept, out); len(kept) != 6 || len(gradients) != len(s.Of) {
				t.Errorf("%d values kept for %d gradients, want 6 for %d", len(kept), len(gradients), len(s.Of))
			}
		}
		g.Finalize()
	}
}

// A graph may have constants already, and arguments may be made of something, even by operations that have no gradient.
func TestSplitInAGraph(t *testing.T) {
	p := randomPiece(7)
	s, n := p.split(), len(p.in)
	gradients := func(before func(in nodes) nodes) [][]float64 {
		var args []any
		for _, a := range append(append([]*tensors.Tensor{}, p.in...), p.v...) {
			args = append(args, a)
		}
		return call(t, devicetest.WithBarriers(), func(in nodes) nodes {
			x := before(in[:n:n])
			_, kept := s.Forward(x)
			return s.Backward(x, kept, in[n:])
		}, args...)
	}
	want := gradients(func(in nodes) nodes { return in })
	same(t, "constants", gradients(func(in nodes) nodes {
		for _, x := range []float64{0, 0.5, 1, 2} {
			graph.AddScalar(in[0], x)
		}
		return append(nodes{graph.Neg(graph.Neg(in[0]))}, in[1:]...)
	}), want, 0)

	product := autodiff.Split{Of: []int{1}, Fn: func(in nodes) nodes {
		return autodiff.Custom(in, func(in nodes) nodes { return nodes{graph.Mul(in[0], in[1])} },
			func(in, _, v nodes) nodes { return nodes{graph.Mul(v[0], in[1]), graph.Mul(v[0], in[0])} })
	}}
	got := call(t, devicetest.PureGo(), func(in nodes) nodes {
		return product.Backward(nodes{graph.Floor(in[0]), in[1]}, nil, in[2:])
	}, float32(3.5), float32(5), float32(7))
	if got[0][0] != 3*7 {
		t.Errorf("gradient %v, want 21", got)
	}
}

// An output that no gradient arrives at has none, and an input that nothing depends on has zeros.
func TestSplitOfSomeOutputs(t *testing.T) {
	s := autodiff.Split{Of: both, Fn: func(in nodes) nodes {
		return nodes{graph.Square(in[0]), graph.ConvertDType(in[1], dtypes.Int32), graph.Mul(in[0], in[1])}
	}}
	got := call(t, devicetest.PureGo(), func(in nodes) nodes {
		return s.Backward(in[:2], nil, nodes{in[2], nil, nil})
	}, float32(3), float32(5), float32(7))
	if got[0][0] != 2*3*7 || got[1][0] != 0 {
		t.Errorf("gradients %v, want 42 and 0", got)
	}
}
