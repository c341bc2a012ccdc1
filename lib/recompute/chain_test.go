package recompute_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/recompute"
	"github.com/shardbook/shardbook/lib/xla"
)

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
	p, err := xla.Compile(mesh, fn, xla.In(xla.Replicated()).Gives(xla.Replicated()))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	args := []any{tensors.FromShape(shapes.Make(dtypes.Float32, rows, width))}
	for range layers {
		args = append(args, tensors.FromShape(shapes.Make(dtypes.Float32, width, width)))
	}
	if err := p.Prepare(args...); err != nil {
		t.Fatal(err)
	}
	m, err := p.Memory()
	if err != nil {
		t.Fatal(err)
	}
	return float64(m.Temporary) / (rows * width * 4)
}

func oneDevice(t *testing.T) *xla.Mesh {
	mesh, err := devicetest.Open(t, 1).Mesh(xla.Axis("data", 1))
	if err != nil {
		t.Fatal(err)
	}
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
