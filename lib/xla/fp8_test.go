package xla_test

import (
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/xla"
)

// operationsOn compiles a graph function for a device, and returns the operations of the program.
func operationsOn(t *testing.T, b *xla.Backend, fn func([]*graph.Node) *graph.Node,
	in ...shapes.Shape) []xla.Operation {
	t.Helper()
	mesh := must.Get(b.Mesh(xla.Axis("data", 1)))(t)
	p := must.Get(xla.Compile(mesh, fn, xla.In(xla.Replicated()).Gives(xla.Replicated())))(t)
	defer p.Close()
	var args []any
	for _, shape := range in {
		args = append(args, tensors.FromShape(shape))
	}
	must.Do(t, p.Prepare(args...))
	return must.Get(p.Operations())(t)
}

// TestDotFP8OnGPUs holds that the matmuls of a linear layer, forward and backward, and batches of them become one call
// of cuBLASLt's each, which takes no transposed operands: XLA transposes them.
func TestDotFP8OnGPUs(t *testing.T) {
	h100 := devicetest.OpenFor(t, "h100", 1)
	const e4m3, e5m2, bf16 = dtypes.F8E4M3FN, dtypes.F8E5M2, dtypes.BFloat16
	const m, n, k = 512, 384, 256
	swap := func(x *graph.Node) *graph.Node { return graph.TransposeAllAxes(x, 0, 2, 1) }
	for name, dot := range map[string]func(x, w, v *graph.Node) *graph.Node{
		"forward":       func(x, w, _ *graph.Node) *graph.Node { return xla.DotFP8(x, w, e4m3, e4m3, bf16) },
		"of the input":  func(_, w, v *graph.Node) *graph.Node { return xla.DotFP8(v, swap(w), e5m2, e4m3, bf16) },
		"of the weight": func(x, _, v *graph.Node) *graph.Node { return xla.DotFP8(swap(v), swap(x), e5m2, e4m3, bf16) },
	} {
		for _, batch := range []int{1, 4} {
			shape := func(rows, columns int) shapes.Shape { return shapes.Make(bf16, batch, rows, columns) }
			calls := 0
			for _, o := range operationsOn(t, h100, func(in []*graph.Node) *graph.Node {
				return dot(in[0], in[1], in[2])
			}, shape(m, k), shape(n, k), shape(m, n)) {
				switch matmul := float64(2 * batch * m * n * k); {
				case o.Target == "__cublas$lt$matmul$f8" && o.FLOPs == matmul:
					calls++
				case o.FLOPs >= matmul:
					t.Errorf("%s, batch of %d: %+v computes the matmul", name, batch, o)
				}
			}
			if calls != 1 {
				t.Errorf("%s, batch of %d: %d calls of cuBLASLt, want 1", name, batch, calls)
			}
		}
	}
}

// TestDotFP8Refused holds that XLA's refusal of such a matmul is the program's error.
func TestDotFP8Refused(t *testing.T) {
	const e4m3 = dtypes.F8E4M3FN
	mesh := must.Get(devicetest.OpenFor(t, "a100", 1).Mesh(xla.Axis("data", 1)))(t)
	p := must.Get(xla.Compile(mesh, func(x *graph.Node) *graph.Node {
		return xla.DotFP8(x, x, e4m3, e4m3, dtypes.Float32)
	}, xla.In(xla.Replicated()).Gives(xla.Replicated())))(t)
	defer p.Close()
	err := p.Prepare(tensors.FromShape(shapes.Make(dtypes.Float32, 1, 16, 16)))
	must.Refuse(t, "8-bit floats on an A100", err, "ALG_DOT")
}

// has asks of a graph on a backend.
func has(t *testing.T, b *xla.Backend, ask func(*graph.Graph) bool) (has bool) {
	t.Helper()
	operationsOn(t, b, func(in []*graph.Node) *graph.Node {
		has = ask(in[0].Graph())
		return in[0]
	}, shapes.Make(dtypes.Float32, 1))
	return has
}

func TestHasFP8(t *testing.T) {
	cpu := must.Get(xla.Open(xla.Devices(1), xla.Plugin("cpu")))(t)
	defer cpu.Close()
	if has(t, cpu, xla.HasFP8) {
		t.Error("cpu: true, want false")
	}
	for gpu, want := range map[string]bool{"a100": false, "h100": true, "b200": true} {
		if got := has(t, devicetest.OpenFor(t, gpu, 1), xla.HasFP8); got != want {
			t.Errorf("%s: %v, want %v", gpu, got, want)
		}
	}
}

// TestHalfPrecisionRoundsOnGPUs holds that XLA leaves no conversion to a half type and back out. Where it does, a step
// in one program and the same step in several end with different parameters: by 778 units in the last place instead of
// less than 64 in lib/offload's TestWays, on CPUs.
func TestHalfPrecisionRoundsOnGPUs(t *testing.T) {
	const n = 1024
	flops := 0.0
	for _, o := range operationsOn(t, devicetest.OpenFor(t, "h100", 1), func(in []*graph.Node) *graph.Node {
		half := graph.ConvertDType(graph.Exp(in[0]), dtypes.BFloat16)
		return graph.Sin(graph.ConvertDType(half, dtypes.Float32))
	}, shapes.Make(dtypes.Float32, n)) {
		flops += o.FLOPs
	}
	if flops != 4*n {
		t.Errorf("%g operations per number, want an exponential, two conversions and a sine", flops/n)
	}
}
