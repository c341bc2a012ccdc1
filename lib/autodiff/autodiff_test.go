package autodiff_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
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
	"github.com/shardbook/shardbook/lib/xla"
)

// XLA writes down what it makes of programs whose name begins with "split", in the working directory: a folder that is
// gone at the end.
func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "autodiff")
		if err == nil {
			defer os.RemoveAll(dir)
			err = os.Chdir(dir)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		os.Setenv("XLA_FLAGS",
			os.Getenv("XLA_FLAGS")+" --xla_dump_to=. --xla_dump_hlo_as_text --xla_dump_hlo_module_re=split.*")
		devicetest.CompileQuickly()
		return m.Run()
	}())
}

type (
	node  = graph.Node
	nodes = []*graph.Node
)

// call runs a graph function and returns the outputs' elements as float64.
func call(t *testing.T, backend compute.Backend, f func(nodes) nodes, in ...any) [][]float64 {
	t.Helper()
	args := make([]*tensors.Tensor, len(in))
	for i, x := range in {
		args[i] = must.Value(tensors.FromAnyValue(x))
	}
	var flat [][]float64
	for _, out := range run(t, backend, "call", f, args...) {
		flat = append(flat, values(out))
	}
	return flat
}

func random(seed uint64, dims ...int) *tensors.Tensor {
	r := rand.New(rand.NewPCG(seed, 1))
	n := 1
	for _, d := range dims {
		n *= d
	}
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(r.NormFloat64())
	}
	return tensors.FromFlatDataAndDimensions(values, dims...)
}

// gradients is a function with its gradients written out.
type gradients struct {
	name     string
	in       []any
	forward  func(in nodes) nodes
	backward func(in, out, v nodes) nodes
	tol      float64 // of the largest gradient
}

func softmax(in nodes) nodes {
	e := graph.Exp(graph.Sub(in[0], graph.ReduceAndKeep(in[0], graph.ReduceMax, -1)))
	return nodes{graph.Div(e, graph.ReduceAndKeep(e, graph.ReduceSum, -1))}
}

func softmaxBackward(_, out, v nodes) nodes {
	y := out[0]
	return nodes{graph.Mul(y, graph.Sub(v[0], graph.ReduceAndKeep(graph.Mul(y, v[0]), graph.ReduceSum, -1)))}
}

// rows looks up rows of a table (in[0], float32) by numbers (in[1], int32), and returns them times a factor (in[2],
// float64), and the squares of the factor in bfloat16: shapes and types all differ.
func rows(in nodes) nodes {
	picked := graph.Gather(in[0], graph.ExpandAxes(in[1], -1))
	return nodes{
		graph.Mul(graph.ConvertDType(picked, dtypes.Float64), graph.ExpandAxes(in[2], 0)),
		graph.ConvertDType(graph.Square(in[2]), dtypes.BFloat16),
	}
}

func rowsBackward(in, _, v nodes) nodes {
	ids := graph.ExpandAxes(in[1], -1)
	factor := graph.ExpandAxes(in[2], 0)
	table := graph.ConvertDType(graph.Mul(v[0], factor), dtypes.Float32)
	picked := graph.ConvertDType(graph.Gather(in[0], ids), dtypes.Float64)
	return nodes{
		graph.ScatterSum(graph.ZerosLike(in[0]), ids, table, false, false),
		nil,
		graph.Add(graph.ReduceSum(graph.Mul(v[0], picked), 0),
			graph.MulScalar(graph.Mul(in[2], graph.ConvertDType(v[1], dtypes.Float64)), 2)),
	}
}

var cases = []gradients{
	{"softmax", []any{random(1, 3, 5)}, softmax, softmaxBackward, 1e-6},
	{"product of two", []any{random(2, 3, 4), random(3, 4, 2)},
		func(in nodes) nodes { return nodes{graph.Dot(in[0], in[1]).Product()} },
		func(in, _, v nodes) nodes {
			return nodes{graph.Dot(v[0], graph.Transpose(in[1], 0, 1)).Product(),
				graph.Dot(graph.Transpose(in[0], 0, 1), v[0]).Product()}
		}, 1e-6},
	{"several shapes, types and outputs", []any{random(4, 5, 3), []int32{4, 0, 4, 2}, []float64{1.5, -2, 0.25}},
		rows, rowsBackward, 1e-6},
}

// loss depends on every element of every output in another way, and on each output more than once.
func loss(out nodes) *node {
	var sum *node
	for i, o := range out {
		o = graph.ConvertDType(o, dtypes.Float32)
		weights := graph.Sin(graph.AddScalar(graph.IotaFull(o.Graph(), o.Shape()), float64(i+1)))
		part := graph.Add(graph.ReduceAllSum(graph.Mul(weights, o)), graph.ReduceAllSum(graph.Square(o)))
		if sum == nil {
			sum = part
		} else {
			sum = graph.Add(sum, part)
		}
	}
	return sum
}

// floats are those of a function's inputs that have a gradient.
func floats(in nodes) (f nodes) {
	for _, x := range in {
		if x.DType().IsFloat() {
			f = append(f, x)
		}
	}
	return f
}

// derive returns a function's outputs, the loss and its gradients, with the function wrapped and used twice.
func derive(wrapped func(nodes) nodes, checkpoint bool) func(nodes) nodes {
	return func(in nodes) nodes {
		inside := append(nodes{}, in...)
		for i := range in {
			if in[i].DType().IsFloat() {
				inside[i] = graph.Sin(in[i]) // something to rematerialize
				if checkpoint {
					inside[i] = graph.Sin(in[i].Checkpoint())
				}
			}
		}
		once := wrapped(inside)
		inside[0] = graph.Cos(inside[0])
		out := append(once, wrapped(inside)...)
		l := loss(out)
		return append(append(out, l), graph.Gradient(l, floats(in)...)...)
	}
}

func TestAgainstGoMLXsOwnGradients(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			want := call(t, devicetest.PureGo(), derive(c.forward, false), c.in...)
			custom := func(in nodes) nodes { return autodiff.Custom(in, c.forward, c.backward) }
			same(t, "Go", call(t, devicetest.PureGo(), derive(custom, false), c.in...), want, c.tol)
			same(t, "XLA", call(t, devicetest.One(), derive(custom, false), c.in...), want, c.tol)
			same(t, "XLA, Checkpoint", call(t, devicetest.One(), derive(custom, true), c.in...), want, c.tol)
		})
	}
}

func same(t *testing.T, name string, got, want [][]float64, tol float64) {
	t.Helper()
	for i := range want {
		largest := 0.0
		for _, x := range want[i] {
			largest = max(largest, math.Abs(x))
		}
		for j := range want[i] {
			if !(math.Abs(got[i][j]-want[i][j]) <= tol*largest) {
				t.Errorf("%s: result %d element %d is %g, want %g", name, i, j, got[i][j], want[i][j])
			}
		}
	}
}

// A gradient that GoMLX would never derive arrives, so it is not GoMLX's; and backward is told zeros for an output
// that the loss does not use.
func TestBackwardDecides(t *testing.T) {
	got := call(t, devicetest.One(), func(in nodes) nodes {
		x := graph.MulScalar(in[0], 3)
		out := autodiff.Custom(nodes{x}, func(in nodes) nodes { return nodes{graph.Square(in[0]), graph.Neg(in[0])} },
			func(in, out, v nodes) nodes {
				return nodes{graph.Add(graph.Add(graph.MulScalar(v[0], 7), graph.MulScalar(v[1], 100)),
					graph.Add(in[0], out[0]))}
			})
		l := graph.ReduceAllSum(out[0])
		return nodes{out[0], out[1], graph.Gradient(l, in[0])[0]}
	}, []float32{1, 2})
	// 3·(7·1 + 100·0 + 3x + 9x²)
	for i, want := range [][]float64{{9, 36}, {-3, -6}, {57, 147}} {
		if got[i][0] != want[0] || got[i][1] != want[1] {
			t.Errorf("result %d is %v, want %v", i, got[i], want)
		}
	}
}

// backward is itself differentiable, and a nil gradient ends the way.
func TestGradientOfTheGradient(t *testing.T) {
	got := call(t, devicetest.PureGo(), func(in nodes) nodes {
		x, y := in[0], in[1]
		cube := autodiff.Custom(nodes{x, y},
			func(in nodes) nodes { return nodes{graph.Mul(graph.Mul(in[0], in[0]), graph.Mul(in[0], in[1]))} },
			func(in, _, v nodes) nodes {
				return nodes{graph.MulScalar(graph.Mul(v[0], graph.Square(in[0])), 3), nil}
			})[0]
		first := graph.Gradient(cube, x, y)
		return append(first, graph.Gradient(first[0], x)...)
	}, 2.0, 1.0)
	for i, want := range []float64{12, 0, 12} {
		if got[i][0] != want {
			t.Errorf("result %d is %v, want %g", i, got[i], want)
		}
	}
}

// On a mesh backward may have operations between the devices: here the gradients of both are summed.
func TestMesh(t *testing.T) {
	mesh := must.Value(devicetest.Open(t, 2).Mesh(xla.Axis("data", 2)))
	all := xla.Shard(0, "data")
	p := must.Value(xla.Compile(mesh, func(x *node) *node {
		w := graph.Sin(x.Checkpoint())
		shared := autodiff.Custom(nodes{w}, func(in nodes) nodes { return in }, func(_, _, v nodes) nodes {
			return x.Graph().Distributed().Along("data").AllReduce(append(v, graph.Const(x.Graph(), int32(0))),
				compute.ReduceOpSum)[:1]
		})[0]
		return graph.Gradient(graph.ReduceAllSum(graph.Mul(shared, graph.StopGradient(x))), x)[0]
	}, xla.In(all).Gives(all)))
	defer p.Close()
	out := must.Value(p.Call([]float32{1, 2}))
	joined := must.Value(out[0].Merge())
	for i, got := range tensors.MustCopyFlatData[float32](joined) {
		if want := (1 + 2) * math.Cos(float64(i+1)); math.Abs(float64(got)-want) > 1e-6 {
			t.Errorf("gradient on device %d is %g, want %g", i, got, want)
		}
	}
}

// The hub leaves nothing in the compiled program: the one with Custom needs no more memory than one with the same
// gradient written by hand. Under Checkpoint it needs less than without, as GoMLX's own gradients do.
func TestMemory(t *testing.T) {
	mesh := must.Value(devicetest.Open(t, 1).Mesh(xla.Axis("data", 1)))
	const n, layers = 128, 6
	x := random(5, n, n)
	forward := func(in nodes) nodes { // keeps two more tensors of x's shape than a checkpoint does
		return nodes{graph.Mul(graph.Sin(graph.Dot(in[0], in[1]).Product()), in[0]), graph.Cos(in[0])}
	}
	backward := func(in, _, v nodes) nodes {
		z := graph.Dot(in[0], in[1]).Product()
		dz := graph.Mul(graph.Mul(v[0], in[0]), graph.Cos(z))
		return nodes{
			graph.Sub(graph.Add(graph.Dot(dz, graph.Transpose(in[1], 0, 1)).Product(), graph.Mul(v[0], graph.Sin(z))),
				graph.Mul(v[1], graph.Sin(in[0]))),
			graph.Dot(graph.Transpose(in[0], 0, 1), dz).Product(),
		}
	}
	temporary := func(step func(x, w *node) *node) int64 {
		t.Helper()
		p := must.Value(xla.Compile(mesh, step, xla.In(xla.Replicated(), xla.Replicated()).Gives(xla.Replicated())))
		defer p.Close()
		must.Do(t, p.Prepare(x, x))
		m := must.Value(p.Memory())
		return m.Temporary
	}
	one := func(x, w *node) *node {
		out := autodiff.Custom(nodes{x, w}, forward, backward)
		return graph.Gradient(graph.ReduceAllSum(graph.Mul(out[0], out[1])), w)[0]
	}
	byHand := func(x, w *node) *node {
		out := forward(nodes{x, w})
		return backward(nodes{x, w}, nil, nodes{out[1], out[0]})[1]
	}
	if got, want := temporary(one), temporary(byHand); got > want {
		t.Errorf("with Custom the program needs %d bytes, by hand %d", got, want)
	}
	deep := func(checkpoint bool) func(x, w *node) *node {
		return func(x, w *node) *node {
			h := x
			for range layers {
				if checkpoint {
					h = h.Checkpoint()
				}
				h = graph.Sin(graph.Exp(graph.Dot(h, w).Product()))
				h = autodiff.Custom(nodes{h, w}, forward, backward)[0]
			}
			return graph.Gradient(graph.ReduceAllSum(h), w)[0]
		}
	}
	if less, more := temporary(deep(true)), temporary(deep(false)); less > more-layers*n*n*4 {
		t.Errorf("under Checkpoint the program needs %d bytes, without %d: want at least a tensor less in each of %d "+
			"layers", less, more, layers)
	}
}

// Floor has no gradient. That matters for an input that depends on nothing else, and not for one on the way to a
// differentiated variable.
func TestInputsWithoutGradient(t *testing.T) {
	for name, c := range map[string]struct {
		input func(x, floor *node) *node
		want  string
	}{
		"floor":      {func(_, floor *node) *node { return floor }, "no gradient is defined"},
		"stopped":    {func(_, floor *node) *node { return graph.StopGradient(floor) }, ""},
		"on the way": {func(x, floor *node) *node { return graph.Mul(x, floor) }, ""},
	} {
		exec := must.Value(graph.NewExec(devicetest.PureGo(), func(in nodes) nodes {
			y := autodiff.Custom(nodes{in[0], c.input(in[0], graph.Floor(in[1]))},
				func(in nodes) nodes { return nodes{graph.Mul(in[0], in[1])} },
				func(in, _, v nodes) nodes { return nodes{graph.Mul(v[0], in[1]), graph.Mul(v[0], in[0])} })[0]
			return graph.Gradient(y, in[0])
		}))
		_, err := exec.Call(float32(2), float32(3.5))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
		exec.Finalize()
	}
}

func TestPanics(t *testing.T) {
	square := func(in nodes) nodes { return nodes{graph.Square(in[0])} }
	gives := func(f func(in nodes) nodes) func(in, out, v nodes) nodes {
		return func(in, _, _ nodes) nodes { return f(in) }
	}
	for _, c := range []struct {
		want     string
		inputs   int
		forward  func(nodes) nodes
		backward func(in, out, v nodes) nodes
	}{
		{"Custom of no inputs", 0, square, nil},
		{"forward returned no outputs", 1, func(nodes) nodes { return nil }, nil},
		{"2 gradients for 1 inputs", 1, square, gives(func(in nodes) nodes { return nodes{in[0], in[0]} })},
		{"a gradient of shape (Float32) for input 0 of shape (Float32)[2]", 1, square,
			gives(func(in nodes) nodes { return nodes{graph.ReduceAllSum(in[0])} })},
		{"a gradient for input 1 of type Int32", 2, square, gives(func(in nodes) nodes { return in })},
	} {
		exec := must.Value(graph.NewExec(devicetest.PureGo(), func(in nodes) nodes {
			out := autodiff.Custom(in[:c.inputs], c.forward, c.backward)
			return graph.Gradient(graph.ReduceAllSum(out[0]), in[0])
		}))
		if _, err := exec.Call([]float32{1, 2}, []int32{3}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q", err, c.want)
		}
		exec.Finalize()
	}
}

// Other barriers keep their gradient, even if their last operand has a gradient function.
func TestOtherBarriers(t *testing.T) {
	got := call(t, devicetest.PureGo(), func(in nodes) nodes {
		tripled := graph.IdentityWithCustomGradient(in[0], func(_, v *node) *node { return graph.MulScalar(v, 3) })
		out := graph.OptimizationBarriers(in[1], tripled)
		return graph.Gradient(graph.Mul(out[0], out[1]), in...)
	}, float32(2), float32(5))
	if got[0][0] != 15 || got[1][0] != 2 {
		t.Errorf("gradients are %v, want 15 and 2", got)
	}
}

// numbers makes 0, 1, 2 in a graph, once for a key, and counts how often.
func numbers(g *graph.Graph, key any, built *int) *graph.Node {
	return autodiff.Once(g, key, func() *graph.Node {
		*built++
		return graph.Iota(g, shapes.Make(dtypes.Float32, 3), 0)
	})
}

// TestOnce builds a node once in a graph for each key.
func TestOnce(t *testing.T) {
	type key struct{ n int }
	built := 0
	for graphs := 1; graphs <= 2; graphs++ {
		g := graph.NewGraph(devicetest.PureGo(), "")
		first := numbers(g, key{1}, &built)
		if again := numbers(g, key{1}, &built); again != first {
			t.Error("a second node for one key")
		}
		if other := numbers(g, key{2}, &built); other == first {
			t.Error("one node for two keys")
		}
		if want := 2 * graphs; built != want {
			t.Errorf("after %d graphs %d nodes are built, want %d", graphs, built, want)
		}
		g.Finalize()
	}
}

// TestOnceInSplit has a Split's function ask for a node that is costly to make, in both passes and in the graph of the
// first before it: it is built in each graph, is not among what the forward pass leaves, and the gradients are those of
// one program.
func TestOnceInSplit(t *testing.T) {
	table := func(g *graph.Graph) *graph.Node {
		return autodiff.Once(g, "table", func() *graph.Node {
			n := graph.AddScalar(graph.Iota(g, shapes.Make(dtypes.Float32, 2, 2), 0), 1)
			return graph.Dot(n, n).Product()
		})
	}
	of := piece{fn: func(in nodes) nodes {
		return nodes{graph.Tanh(graph.Dot(in[0], table(in[0].Graph())).Product())}
	}, in: []*tensors.Tensor{tensors.FromValue([][]float32{{0.25, -0.5}, {1, 0.125}})},
		v: []*tensors.Tensor{tensors.FromValue([][]float32{{1, 2}, {3, 4}})}}
	on := devicetest.PureGo()
	forward := run(t, on, "once_forward", func(in nodes) nodes {
		table(in[0].Graph())
		return of.forward(in)
	}, of.in...)
	if len(forward) != 2 { // the output, and the one product of the input
		t.Fatalf("the forward pass returns %d values, want 2", len(forward))
	}
	got := run(t, on, "once_backward", of.backward, slices.Concat(of.in, forward[1:], of.v)...)
	if want := of.inOne(t, on)[1]; !got[0].Equal(want) {
		t.Errorf("the gradient is %v, want %v", got[0], want)
	}
}
