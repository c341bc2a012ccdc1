package xla

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/xla/internal/dense"
)

// TestKernels: programs with kernels and without have the same results up to rounding; which operations a program has
// shows where kernels are called, and that no operand of a matmul or of its gradient is transposed in memory.
func TestKernels(t *testing.T) {
	with := must.Get(Open(Devices(1), Plugin("cpu")))(t)
	defer with.Close()
	without := must.Get(Open(Devices(1), Plugin("cpu"), NoKernels()))(t)
	defer without.Close()
	linear := func(x []*graph.Node) *graph.Node { // summed with weights that differ, so that the gradients do
		y := graph.DotGeneral(x[0], []int{2}, nil, x[1], []int{0}, nil)
		y = graph.Add(y, graph.BroadcastToDims(graph.ExpandLeftToRank(x[2], 3), y.Shape().Dimensions...))
		return graph.ReduceAllSum(graph.Mul(y, graph.Sin(y)))
	}
	for _, c := range []struct {
		name  string
		fn    func(x []*graph.Node) []*graph.Node
		sizes [][]int
		calls []string // kernels
	}{
		{"a linear layer and its gradients", func(x []*graph.Node) []*graph.Node {
			return append(graph.Gradient(linear(x), x...), linear(x))
		}, [][]int{{4, 32, 64}, {64, 288}, {288}}, []string{"column_sums", "matmul_nn", "matmul_nt", "matmul_tn"}},
		{"half types", func(x []*graph.Node) []*graph.Node {
			a, b := graph.ConvertDType(x[0], dtypes.BFloat16), graph.ConvertDType(x[1], dtypes.BFloat16)
			return []*graph.Node{graph.ConvertDType(graph.Dot(a, b).Product(), dtypes.Float32)}
		}, [][]int{{64, 64}, {64, 64}}, []string{"matmul_nn"}},
		{"both transposed", func(x []*graph.Node) []*graph.Node {
			return []*graph.Node{graph.DotGeneral(x[0], []int{0}, nil, x[1], []int{1}, nil)}
		}, [][]int{{65, 64}, {64, 65}}, []string{"matmul_tt"}},
		{"in a loop, with a value from outside", func(x []*graph.Node) []*graph.Node {
			three := graph.Const(x[0].Graph(), int32(3))
			return []*graph.Node{repeated(three, x[0], func(_, y *graph.Node) *graph.Node {
				return graph.Tanh(graph.Dot(y, x[1]).Product())
			})}
		}, [][]int{{64, 64}, {64, 64}}, []string{"matmul_nn"}},
		{"recomputed", func(x []*graph.Node) []*graph.Node {
			y := graph.Tanh(graph.Dot(x[0], x[1]).Product()).Checkpoint()
			return graph.Gradient(graph.ReduceAllSum(graph.Mul(y, y)), x...)
		}, [][]int{{64, 64}, {64, 64}}, []string{"matmul_nn", "matmul_nt", "matmul_tn"}},
		{"too small, too few rows, batched, sums of rows", func(x []*graph.Node) []*graph.Node {
			return []*graph.Node{graph.Dot(x[0], x[1]).Product(), graph.Dot(x[2], x[3]).Product(),
				graph.Einsum("bij,bjk->bik", x[4], x[4]), graph.ReduceSum(x[4], 2), graph.ReduceSum(x[4], 0, 2)}
		}, [][]int{{63, 64}, {64, 64}, {7, 512}, {512, 512}, {2, 128, 128}}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(3, 4))
			var inputs [2][]any
			for _, dims := range c.sizes {
				values := make([]float32, size(dims))
				for i := range values {
					values[i] = float32(random.NormFloat64()) / 8
				}
				for i := range inputs {
					inputs[i] = append(inputs[i], tensors.FromFlatDataAndDimensions(slices.Clone(values), dims...))
				}
			}
			var results [2][]*dtensor.Tensor
			for i, b := range []*Backend{with, without} {
				mesh := must.Get(b.Mesh(Axis("x", 1)))(t)
				p := must.Get(Compile(mesh, c.fn, In(Replicated()).Gives(Replicated())))(t)
				defer p.Close()
				results[i] = must.Get(p.Call(inputs[i]...))(t)
				calls, transposed := kernelCalls(t, p)
				want := c.calls
				if i == 1 || dense.Bits() == 128 { // without AVX2 XLA computes matmuls
					want = nil
				}
				if !slices.Equal(calls, want) {
					t.Errorf("kernels %v: calls %q, want %q", i == 0, calls, want)
				}
				if want != nil && transposed {
					t.Error("something is transposed in memory")
				}
			}
			for n, got := range results[0] {
				want := tensors.MustCopyFlatData[float32](results[1][n].Shards()[0])
				for i, v := range tensors.MustCopyFlatData[float32](got.Shards()[0]) {
					if math.Abs(float64(v-want[i])) > 1e-2*max(1, math.Abs(float64(want[i]))) && c.name == "half types" ||
						math.Abs(float64(v-want[i])) > 2e-5*max(1, math.Abs(float64(want[i]))) && c.name != "half types" {
						t.Fatalf("result %d, element %d: %g with kernels, %g without", n, i, v, want[i])
					}
				}
			}
		})
	}
}

func size(dims []int) int {
	n := 1
	for _, d := range dims {
		n *= d
	}
	return n
}

// kernelCalls returns the kernels that a program calls, each once, and whether it transposes anything.
func kernelCalls(t *testing.T, p *Program) (names []string, transposed bool) {
	t.Helper()
	h := must.Get(latest(&p.compiled, (*executable).optimized))(t)
	for _, c := range h.all {
		for _, i := range c.instructions {
			transposed = transposed || i.opcode == "transpose"
			var name string
			if n, _ := fmt.Sscanf(i.field("custom_call_target").String(), "shardbook_%s", &name); n == 1 {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), transposed
}

// TestKernelsCompileAuto: where the compiler shards the program, it computes matmuls itself.
func TestKernelsCompileAuto(t *testing.T) {
	b := must.Get(Open(Devices(2), Plugin("cpu")))(t)
	defer b.Close()
	mesh := must.Get(b.Mesh(Axis("x", 2)))(t)
	p := must.Get(CompileAuto(mesh, func(x *graph.Node) *graph.Node { return graph.Dot(x, x).Product() },
		In(Shard(0, "x")).Gives(Replicated())))(t)
	defer p.Close()
	must.Do(t, p.Prepare(tensors.FromShape(floats(128, 128))))
	if calls, _ := kernelCalls(t, p); calls != nil {
		t.Errorf("it calls %q", calls)
	}
}

// TestMemoryStays: a program's temporary buffers are kept between its runs, within the bound, until FreeMemory.
func TestMemoryStays(t *testing.T) {
	b := must.Get(Open(Devices(1), Plugin("cpu")))(t)
	defer b.Close()
	mesh := must.Get(b.Mesh(Axis("x", 1)))(t)
	p := must.Get(Compile(mesh, func(x *graph.Node) *graph.Node {
		return graph.ReduceAllSum(graph.Dot(graph.Dot(x, x).Product(), x).Product())
	}, In(Replicated()).Gives(Replicated())))(t)
	defer p.Close()
	x := tensors.FromShape(floats(1024, 1024))
	for range 3 {
		must.Do(t, must.Get(p.Call(x))(t)[0].Finalize())
	}
	FreeMemory()
	must.Do(t, must.Get(p.Call(x))(t)[0].Finalize())
	temporary := int(must.Get(p.Memory())(t).Temporary)
	for { // XLA frees them some time after the program's results are there; never is the test's time limit
		if _, unused := KeptMemory(); unused >= temporary*9/10 {
			break
		}
		time.Sleep(time.Millisecond)
	}
}
