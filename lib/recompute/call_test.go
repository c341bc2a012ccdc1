package recompute_test

import (
	"errors"
	"math"
	"math/rand/v2"
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
	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/recompute"
	"github.com/shardbook/shardbook/lib/xla"
)

func TestMain(m *testing.M) { devicetest.Main(m) }

type nodes = []*graph.Node

func normal(random *rand.Rand, dims ...int) *tensors.Tensor {
	size := 1
	for _, d := range dims {
		size *= d
	}
	flat := make([]float32, size)
	for i := range flat {
		flat[i] = float32(random.NormFloat64())
	}
	return tensors.FromFlatDataAndDimensions(flat, dims...)
}

// run runs a function of tensors on a backend.
func run(t *testing.T, backend compute.Backend, fn func(in nodes) nodes, args []*tensors.Tensor) []*tensors.Tensor {
	t.Helper()
	own := make([]*tensors.Tensor, len(args)) // a tensor can be on one backend only
	for i, arg := range args {
		own[i] = must.Value(arg.LocalClone())
	}
	out := must.Value(devicetest.CallOn(backend, fn, own...))
	return out
}

// same compares the results of functions. They must be the same bits on the backend that runs operations as written.
func same(t *testing.T, args []*tensors.Tensor, fn func(in nodes) nodes, others ...func(in nodes) nodes) {
	t.Helper()
	for backend, bound := range map[compute.Backend]float64{devicetest.WithBarriers(): 0, devicetest.One(): roundings} {
		want := run(t, backend, fn, args)
		for _, other := range others {
			checkNear(t, run(t, backend, other, args), want, bound)
		}
	}
}

// roundings bounds the differences between XLA's results, in units in the last place of the largest: it fuses
// recomputed operations differently, and then may round differently.
const roundings = 64

// checkNear compares results, to a bound in units in the last place of the largest element.
func checkNear(t *testing.T, got, want []*tensors.Tensor, bound float64) {
	t.Helper()
	for k := range want {
		a, b := tensors.MustCopyFlatData[float32](got[k]), tensors.MustCopyFlatData[float32](want[k])
		off, largest := 0.0, 0.0
		for i := range b {
			off, largest = max(off, math.Abs(float64(a[i]-b[i]))), max(largest, math.Abs(float64(b[i])))
		}
		if !(off <= bound*largest*0x1p-23) {
			t.Errorf("result %d is %v, want %v: off by %g", k, a, b, off)
		}
	}
}

// attend has several inputs and outputs, one of them integers, and uses some values more than once.
func attend(w *graph.Node) func(in nodes) nodes {
	return func(in nodes) nodes {
		x, rows := in[0], in[1]
		z := graph.Dot(graph.Gather(x, rows), w).Product()
		y := graph.Mul(graph.Sin(z), graph.Exp(z))
		return nodes{graph.Add(y, graph.Cos(z)), graph.ReduceSum(y, 0)}
	}
}

// direct is Call without recomputation.
func direct(fn func(in nodes) nodes, in ...*graph.Node) nodes { return fn(in) }

type caller = func(fn func(in nodes) nodes, in ...*graph.Node) nodes

// gradients builds a loss of attend applied twice, and its gradients.
func gradients(call caller) func(in nodes) nodes {
	return func(in nodes) nodes {
		x, rows, w := in[0], in[1], in[2]
		one := call(attend(w), x, rows)
		two := call(attend(w), one[0], rows)
		loss := graph.Add(graph.ReduceAllSum(graph.Mul(two[0], x)), graph.ReduceAllSum(graph.Mul(one[1], two[1])))
		return append(graph.Gradient(loss, x, w), loss)
	}
}

// nested puts each call inside another.
func nested(fn func(in nodes) nodes, in ...*graph.Node) nodes {
	return recompute.Call(func(in nodes) nodes { return recompute.Call(fn, in...) }, in...)
}

func TestCall(t *testing.T) {
	random := rand.New(rand.NewPCG(13, 14))
	args := []*tensors.Tensor{normal(random, 4, 3), tensors.FromValue([][]int32{{3}, {0}, {2}, {3}}),
		normal(random, 3, 3)}
	same(t, args, gradients(direct), gradients(recompute.Call), gradients(nested))
}

// The backward pass uses nothing that fn computed in the forward pass.
func TestCallKeepsNothing(t *testing.T) {
	for name, test := range map[string]struct {
		call caller
		want int
	}{
		"direct": {direct, 1}, "Call": {recompute.Call, 0},
	} {
		building(t, func(g *graph.Graph) {
			x, w := parameter(g, "x", 4, 3), parameter(g, "w", 3, 3)
			y := test.call(func(in nodes) nodes {
				return nodes{graph.Sin(graph.Sin(graph.Dot(in[0], w).Product()))}
			}, graph.Exp(x))[0]
			loss := graph.ReduceAllSum(y)
			kept := keptFor(loss, graph.Gradient(loss, x, w))
			// The inner sine is the outer's argument, which its gradient needs.
			if got := kept[graph.NodeTypeSin]; got != test.want {
				t.Errorf("%s: %d sines are kept, want %d", name, got, test.want)
			}
			if test.want == 0 && (kept[graph.NodeTypeDotGeneral] > 0 || kept[graph.NodeTypeOptimizationBarrier] == 0) {
				t.Errorf("%s: kept are %v, want the input only", name, kept)
			}
		})
	}
}

func TestCallErrors(t *testing.T) {
	x := tensors.FromScalar(float32(1))
	boom := errors.New("fn has failed")
	for _, test := range []struct {
		call func(x *graph.Node) nodes
		want string
	}{
		{func(*graph.Node) nodes { return recompute.Call(func(in nodes) nodes { return in }) }, "Call without inputs"},
		{func(x *graph.Node) nodes { return recompute.Call(func(in nodes) nodes { return in }, x, nil) },
			"input 1 of Call is nil"},
		{func(x *graph.Node) nodes { return recompute.Call(func(nodes) nodes { return nodes{nil} }, x) },
			"output 0 of Call's function is nil"},
		{func(x *graph.Node) nodes { return recompute.Call(func(nodes) nodes { panic(boom) }, x) }, "fn has failed"},
	} {
		_, err := devicetest.Call(func(in nodes) nodes { return test.call(in[0]) }, x)
		must.Refuse(t, "", err, test.want)
	}
}

// A collective inside is recomputed on all devices, and its gradient does not change.
func TestCallWithCollective(t *testing.T) {
	mesh := must.Value(devicetest.Open(t, 2).Mesh(xla.Axis("data", 2)))
	random := rand.New(rand.NewPCG(15, 16))
	x, w := normal(random, 6, 3), normal(random, 3, 3)
	var gradients [][]*tensors.Tensor
	var reductions []int
	for _, call := range []caller{direct, recompute.Call} {
		p := must.Value(xla.Compile(mesh, func(x, w *graph.Node) nodes {
			y := call(func(in nodes) nodes {
				z := graph.Sin(graph.Dot(in[0], w).Product())
				return nodes{graph.Exp(collective.AllReduce(z, collective.Sum, "data"))}
			}, x)[0]
			return graph.Gradient(graph.ReduceAllSum(graph.Mul(graph.Square(y), x)), x, w)
		}, xla.In(xla.Shard(0, "data"), xla.Replicated()).Gives(xla.Shard(0, "data"))))
		defer p.Close()
		out := must.Value(p.Call(x, w))
		var whole []*tensors.Tensor
		for _, o := range out {
			merged := must.Value(o.Merge())
			whole = append(whole, merged)
		}
		report := must.Value(p.Collectives())
		gradients, reductions = append(gradients, whole), append(reductions, report.Of(xla.AllReduce).Count)
	}
	checkNear(t, gradients[1], gradients[0], roundings)
	if reductions[0] != 2 || reductions[1] != 3 {
		t.Errorf("%d all-reduces without Call, %d with it, want 2 and 3: forward, backward and recomputed",
			reductions[0], reductions[1])
	}
}

// A custom gradient right before a Call is preserved, like that of collective.F, and so is a StopGradient.
func TestCallAfterCustomGradients(t *testing.T) {
	out := must.Value(devicetest.CallOn(devicetest.WithBarriers(), func(in nodes) nodes {
		x := in[0]
		twice := graph.IdentityWithCustomGradient(x, func(_,
			v *graph.Node) *graph.Node {
			return graph.MulScalar(v, 2)
		})
		sin := func(in nodes) nodes { return nodes{graph.Sin(in[0])} }
		return append(graph.Gradient(recompute.Call(sin, twice)[0], x),
			graph.Gradient(recompute.Call(sin, graph.StopGradient(x))[0], x)...)
	}, tensors.FromValue(float32(1))))
	got := []float64{float64(tensors.ToScalar[float32](out[0])), float64(tensors.ToScalar[float32](out[1]))}
	if want := 2 * math.Cos(1); math.Abs(got[0]-want) > 1e-6 || got[1] != 0 {
		t.Errorf("gradients %v, want %v and 0", got, want)
	}
}

type layer = func(x *graph.Node) *graph.Node

// deep builds the gradients, of weights and input, of a network of layers tanh(x·w).
func deep(activation layer, segments ...int) func(in []*graph.Node) []*graph.Node {
	return func(in []*graph.Node) []*graph.Node {
		layers := make([]layer, len(in)-1)
		for i, w := range in[1:] {
			layers[i] = func(x *graph.Node) *graph.Node { return activation(graph.Dot(x, w).Product()) }
		}
		return graph.Gradient(graph.ReduceAllSum(graph.Square(recompute.Chain(in[0], layers, segments...))), in[1:]...)
	}
}

// The activations of one layer, which are much larger than its weights.
const rows, width = 4096, 4

// temporary measures XLA's temporary memory in tensors of one layer's size.
func temporary(t *testing.T, mesh *xla.Mesh, layers int, fn func(in []*graph.Node) []*graph.Node) float64 {
	t.Helper()
	p := must.Value(xla.Compile(mesh, fn, xla.In(xla.Replicated()).Gives(xla.Replicated())))
	defer p.Close()
	args := []any{tensors.FromShape(shapes.Make(dtypes.Float32, rows, width))}
	for range layers {
		args = append(args, tensors.FromShape(shapes.Make(dtypes.Float32, width, width)))
	}
	must.Do(t, p.Prepare(args...))
	m := must.Value(p.Memory())
	return float64(m.Temporary) / (rows * width * 4)
}

func oneDevice(t *testing.T) *xla.Mesh {
	mesh := must.Value(devicetest.Open(t, 1).Mesh(xla.Axis("data", 1)))
	return mesh
}

// XLA's memory follows Chen's formula, k segments and n/k layers of one, and is least for k = √n among equal segments.
func TestChainMemory(t *testing.T) {
	mesh := oneDevice(t)
	for _, k := range []int{1, 2, 3, 4, 6, 9, 12, 18, 36} {
		got := temporary(t, mesh, 36, deep(graph.Tanh, recompute.Uniform(36, k)...))
		if want := float64(k + 36/k); math.Abs(got-want) > 0.1 {
			t.Errorf("%d segments of %d layers need %.2f tensors, want %g", k, 36/k, got, want)
		}
	}
	if got := temporary(t, mesh, 36, deep(graph.Tanh)); math.Abs(got-37) > 0.1 {
		t.Errorf("with nothing recomputed 36 layers need %.2f tensors, want 37", got)
	}
	// Segments of 8, 7, …, 1 layers, and the gradient.
	if got := temporary(t, mesh, 36, deep(graph.Tanh, recompute.Shrinking(36)...)); math.Abs(got-9) > 0.1 {
		t.Errorf("segments that get shorter need %.2f tensors, want 9", got)
	}
}

// The gradient of a sine needs its argument, and the next matmul its result: two tensors a layer. So the best number of
// segments for 18 layers is √(2·18) = 6.
func TestChainMemoryOfTwo(t *testing.T) {
	mesh := oneDevice(t)
	for _, k := range []int{2, 3, 6, 9, 18} {
		got := temporary(t, mesh, 18, deep(graph.Sin, recompute.Uniform(18, k)...))
		if want := float64(k + 2*18/k - 1); math.Abs(got-want) > 0.1 { // the last result is in no product
			t.Errorf("%d segments of %d layers need %.2f tensors, want %g", k, 18/k, got, want)
		}
	}
}

func TestChainGradients(t *testing.T) {
	random := rand.New(rand.NewPCG(11, 12))
	args := []*tensors.Tensor{normal(random, 5, 3)}
	for range 5 {
		args = append(args, normal(random, 3, 3))
	}
	same(t, args, deep(graph.Tanh), deep(graph.Tanh, 5), deep(graph.Tanh, 1, 1, 1, 1, 1), deep(graph.Tanh, 1, 3, 1))
}

func TestChainErrors(t *testing.T) {
	for _, test := range []struct {
		segments []int
		want     string
	}{
		{[]int{2}, "the segments have 2 of 3 layers"},
		{[]int{2, 2}, "segment 1 has 2 layers, with 1 layers left"},
		{[]int{3, 0}, "segment 1 has 0 layers"},
		{[]int{-1, 4}, "segment 0 has -1 layers"},
	} {
		x := normal(rand.New(rand.NewPCG(0, 0)), 2, 2)
		if _, err := devicetest.Call(deep(graph.Tanh, test.segments...), x, x, x, x); err == nil ||
			!strings.Contains(err.Error(), test.want) {
			t.Errorf("segments %v of 3: error %v, want %q", test.segments, err, test.want)
		}
	}
}

func TestSegments(t *testing.T) {
	for _, test := range []struct {
		n, k int
		want []int
	}{
		{36, 6, []int{6, 6, 6, 6, 6, 6}}, {7, 3, []int{3, 2, 2}}, {3, 3, []int{1, 1, 1}}, {5, 1, []int{5}},
		{3, 9, []int{1, 1, 1}}, {3, 0, []int{3}}, {3, -1, []int{3}}, {0, 2, nil}, {-1, 2, nil},
	} {
		if got := recompute.Uniform(test.n, test.k); !slices.Equal(got, test.want) {
			t.Errorf("%d layers in %d segments: %v, want %v", test.n, test.k, got, test.want)
		}
	}
	for n, want := range map[int][]int{-1: nil, 0: nil, 1: {1}, 2: {2}, 3: {2, 1}, 5: {3, 2}, 6: {3, 2, 1}, 7: {4, 3},
		8: {4, 3, 1}} {
		if got := recompute.Shrinking(n); !slices.Equal(got, want) {
			t.Errorf("%d layers in segments that get shorter: %v, want %v", n, got, want)
		}
	}
}

// See docs/upstream.md, "custom gradients before Checkpoint".
func TestUpstreamCustomGradientBeforeCheckpoint(t *testing.T) {
	same := func(_, v *graph.Node) *graph.Node { return v }
	_, err := devicetest.CallOn(devicetest.WithBarriers(), func(in []*graph.Node) []*graph.Node {
		x := graph.IdentityWithCustomGradient(in[0], same).Checkpoint()
		return graph.Gradient(graph.Mul(x, graph.Sin(x)), in[0])
	}, tensors.FromValue(float32(1)))
	if err == nil {
		t.Fatal("upstream has mended custom gradients before Checkpoint: remove the workaround in " +
			"lib/recompute/call.go")
	}
	t.Log(err)
}
