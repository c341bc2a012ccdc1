package autodiff_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/autodiff"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/xla"
)

// piece is a function to split, with its inputs, of which the floats have gradients, and the gradients of its outputs.
type piece struct {
	name  string
	fn    func(in nodes) nodes
	in, v []*tensors.Tensor
}

func (p piece) split() autodiff.Split {
	s := autodiff.Split{Fn: p.fn}
	for i, x := range p.in {
		if x.DType().IsFloat() {
			s.Of = append(s.Of, i)
		}
	}
	return s
}

// forward and backward are the programs of a split, and whole is the one program that does the same.
func (p piece) forward(in nodes) nodes {
	out, kept := p.split().Forward(in)
	return append(slices.Clone(out), kept...)
}

func (p piece) backward(in nodes) nodes {
	n, v := len(p.in), len(in)-len(p.v)
	return p.split().Backward(in[:n], in[n:v], in[v:])
}

func (p piece) whole(in nodes) nodes {
	n := len(p.in)
	out := p.fn(in[:n])
	var sum *node
	for i, y := range out {
		part := graph.ConvertDType(graph.ReduceAllSum(graph.Mul(y, in[n+i])), dtypes.Float32)
		if sum == nil {
			sum = part
		} else {
			sum = graph.Add(sum, part)
		}
	}
	return append(slices.Clone(out), graph.Gradient(sum, floats(in[:n])...)...)
}

// program names a program for [countOps].
func (p piece) program(which string) string { return "split_" + p.name + "_" + which }

// inTwo returns the outputs and gradients of two programs, and the saved activations; inOne those of one program.
func (p piece) inTwo(t *testing.T, on compute.Backend) (results, kept []*tensors.Tensor) {
	t.Helper()
	forward := run(t, on, p.program("forward"), p.forward, p.in...)
	out, kept := forward[:len(p.v)], forward[len(p.v):]
	return slices.Concat(out, run(t, on, p.program("backward"), p.backward, slices.Concat(p.in, kept, p.v)...)), kept
}

func (p piece) inOne(t *testing.T, on compute.Backend) []*tensors.Tensor {
	t.Helper()
	return run(t, on, p.program("whole"), p.whole, slices.Concat(p.in, p.v)...)
}

// run runs a graph function once under a name, on copies: GoMLX keeps a tensor to the backend that saw it first.
func run(t *testing.T, on compute.Backend, name string, fn func(nodes) nodes,
	args ...*tensors.Tensor) []*tensors.Tensor {
	t.Helper()
	own := make([]*tensors.Tensor, len(args))
	for i, a := range args {
		own[i] = must.Value(a.LocalClone())
	}
	exec := must.Value(graph.NewExec(on, fn))
	defer exec.Finalize()
	exec.WithName(name)
	out := must.Value(exec.Call(own))
	return out
}

// values returns a tensor's elements.
func values(x *tensors.Tensor) []float64 {
	out := must.Value(devicetest.CallOn(devicetest.PureGo(),
		func(in nodes) nodes { return nodes{graph.ConvertDType(in[0], dtypes.Float64)} }, must.Value(x.LocalClone())))
	return tensors.MustCopyFlatData[float64](out[0])
}

// apart is the largest difference between two results, as a share of the largest element.
func apart(a, b *tensors.Tensor) float64 {
	x, y := values(a), values(b)
	largest, difference := 0.0, 0.0
	for i := range x {
		largest, difference = max(largest, math.Abs(y[i])), max(difference, math.Abs(x[i]-y[i]))
		if math.IsNaN(x[i]) != math.IsNaN(y[i]) {
			return math.Inf(1)
		}
	}
	if difference == 0 {
		return 0
	}
	return difference / largest
}

func sameBits(t *testing.T, got, want []*tensors.Tensor) {
	t.Helper()
	for i := range want {
		if !got[i].Equal(want[i]) {
			t.Errorf("result %d, %s, differs by %g of its largest element", i, want[i].Shape(), apart(got[i], want[i]))
		}
	}
}

// count counts the operations of a name in one of the piece's programs as XLA compiled it.
func (p piece) count(t *testing.T, which, op string) (n int) {
	t.Helper()
	files := must.Value(filepath.Glob("module_*." + p.program(which) + "_*.cpu_after_optimizations.txt"))
	if len(files) != 1 {
		t.Fatalf("XLA has written %d programs %s, want 1: %v", len(files), p.program(which), files)
	}
	for line := range strings.Lines(string(must.Value(os.ReadFile(files[0])))) {
		if strings.Contains(line, " "+op+"(") && !strings.Contains(line, autodiff.Cheap) {
			n++
		}
	}
	return n
}

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
			mesh := must.Value(devicetest.One().Mesh(xla.Axis("data", 1)))
			must.Do(t, g.SetAutoSharding(mesh.DeviceMesh))
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

// Kept values are told by how they are made, so functions that make them in another order each time, as with a map's,
// are right; those that make others are refused.
func TestSplitOfUnsteadyFunctions(t *testing.T) {
	calls := 0
	ordered := autodiff.Split{Of: both, Fn: func(in nodes) nodes {
		calls++
		products := make(nodes, 2)
		for i := range products {
			at := (i + calls) % 2
			products[at] = graph.Dot(in[at], in[2]).Product()
		}
		return nodes{graph.Mul(graph.Sin(products[0]), graph.Cos(products[1]))}
	}}
	x := []any{random(1, 3, 3), random(2, 3, 3), random(3, 3, 3), random(4, 3, 3)}
	split := func(s autodiff.Split, odd int) func(in nodes) nodes {
		return func(in nodes) nodes {
			_, kept := s.Forward(in[:3])
			calls += odd
			return s.Backward(in[:3], kept, in[3:])
		}
	}
	want := call(t, devicetest.PureGo(), split(ordered, 0), x...)
	same(t, "another order", call(t, devicetest.PureGo(), split(ordered, 1), x...), want, 0)

	other := autodiff.Split{Of: both, Fn: func(in nodes) nodes {
		calls++
		return nodes{graph.Square(graph.Dot(in[calls%2], in[2]).Product())}
	}}
	refused(t, "builds a different graph each time", split(other, 0), x...)
}

func refused(t *testing.T, want string, fn func(in nodes) nodes, args ...any) {
	t.Helper()
	exec := must.Value(graph.NewExec(devicetest.PureGo(), fn))
	defer exec.Finalize()
	for i, x := range args {
		if x, ok := x.(*tensors.Tensor); ok {
			args[i] = must.Value(x.LocalClone())
		}
	}
	if _, err := exec.Call(args...); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
}

func TestSplitRefuses(t *testing.T) {
	of := func(inputs ...int) autodiff.Split { return autodiff.Split{Fn: squared, Of: inputs} }
	good := of(both...)
	for want, fn := range map[string]func(in nodes) nodes{
		"Split of no inputs":              func(nodes) nodes { out, _ := good.Forward(nil); return out },
		"input 1 of Split":                func(in nodes) nodes { x, _ := good.Forward(nodes{in[0], nil}); return x },
		"Split.Of has 2":                  func(in nodes) nodes { return of(2).Backward(in[:2], nil, nil) },
		"Split.Of has -1":                 func(in nodes) nodes { return of(-1).Backward(in[:2], nil, nil) },
		"of inputs that are floats":       func(in nodes) nodes { return of(2).Backward(in, nil, nil) },
		"0 saved values, want the 1":      func(in nodes) nodes { return good.Backward(in[:2], nil, in[:1]) },
		"saved value 0 has shape (Int32)": func(in nodes) nodes { return good.Backward(in[:2], in[2:], in[:1]) },
		"0 gradients for the 1 outputs": func(in nodes) nodes {
			_, kept := good.Forward(in[:2])
			return good.Backward(in[:2], kept, nil)
		},
		"a gradient of shape (Int32) for output 0": func(in nodes) nodes {
			_, kept := good.Forward(in[:2])
			return good.Backward(in[:2], kept, in[2:])
		},
		"output 0 of Split's function is nil": func(in nodes) nodes {
			out, _ := autodiff.Split{Fn: func(nodes) nodes { return nodes{nil} }}.Forward(in)
			return out
		},
		"different graphs": func(in nodes) nodes { // it reaches past its arguments
			past := func(inside nodes) nodes { return nodes{graph.Mul(inside[0], in[1])} }
			out, _ := autodiff.Split{Fn: past}.Forward(in)
			return out
		},
	} {
		refused(t, want, fn, random(1, 2, 2), random(2, 2, 2), int32(1))
	}
}

func TestSplitSaved(t *testing.T) {
	s := autodiff.Split{Fn: squared, Of: both}
	f32 := func(dims ...int) shapes.Shape { return shapes.Make(dtypes.Float32, dims...) }
	saved, err := s.Saved(devicetest.PureGo(), f32(2, 3), f32(3, 4))
	if err != nil || len(saved) != 1 || !saved[0].Equal(f32(2, 4)) {
		t.Errorf("saves %v, %v; want the matmul", saved, err)
	}
	if _, err := s.Saved(devicetest.PureGo(), f32(2, 3), f32(4, 4)); err == nil ||
		!strings.HasPrefix(err.Error(), "autodiff: ") {
		t.Errorf("error %v for shapes that do not fit", err)
	}
	if _, err := s.Saved(devicetest.PureGo()); err == nil {
		t.Error("no error for no inputs")
	}
}

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
