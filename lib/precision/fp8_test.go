package precision_test

import (
	"math"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/xla"
)

// fp8 is the matmuls of the policy "fp8".
func fp8(t *testing.T) precision.Matmul {
	t.Helper()
	return must.Get(precision.ParsePolicy("fp8"))(t).Matmul
}

// Matmuls of 8-bit floats by XLA, which also compiles them for CPUs, round every number as the simulation does, of
// operands and of gradients: a product with 1 shows it.
func TestFP8RoundsAsSimulated(t *testing.T) {
	m := fp8(t)
	for _, dtype := range []dtypes.DType{dtypes.Float32, dtypes.BFloat16, dtypes.Float16} {
		step := func(in nodes) (out nodes) {
			for _, x := range precision.Cast(in, dtype) {
				one := graph.Ones(x.Graph(), shape(1, 1))
				y := m.Dot(x, []int{1}, nil, graph.ConvertDType(one, dtype), []int{0}, nil)
				wide := graph.ConvertDType(y, dtypes.Float32)
				loss := graph.ReduceAllSum(graph.Mul(wide, graph.StopGradient(graph.ConvertDType(x, dtypes.Float32))))
				out = append(out, wide, graph.ConvertDType(graph.Gradient(loss, x)[0], dtypes.Float32))
			}
			return out
		}
		var in []any
		for _, f := range []precision.Format{precision.E4M3, precision.E5M2} {
			column := matrix{{float32(f.Largest()) / 2}} // what others are scaled by
			for _, x := range inputs(f)[:8000] {         // all that matter, and random ones
				if math.Abs(float64(x)) <= f.Largest()/2 {
					column = append(column, []float32{x})
				}
			}
			in = append(in, column)
		}
		want := run(t, devicetest.One(), step, in...)
		precision.WithFP8(t)
		got := run(t, devicetest.One(), step, in...)
		for i := range want {
			for j, w := range floats(want[i]) {
				if g := floats(got[i])[j]; g != w {
					t.Fatalf("%s, result %d: %g becomes %g, simulated %g", dtype, i, in[i/2].(matrix)[j][0], g, w)
				}
			}
		}
	}
}

// The three matmuls of a step differ from simulated ones only by the order of sums in float32.
func TestFP8AgainstSimulated(t *testing.T) {
	m := fp8(t)
	const batch, rows, depth, columns = 2, 33, 80, 17
	x, w := normal(1, batch*rows, depth, 0.02), normal(2, batch*columns, depth, 3)
	v := normal(3, batch*rows, columns, 1e-6)
	step := func(in nodes) nodes {
		x, w := graph.Reshape(in[0], batch, rows, depth), graph.Reshape(in[1], batch, columns, depth)
		y := m.Dot(x, []int{2}, []int{0}, w, []int{2}, []int{0})
		v := graph.Reshape(in[2], batch, rows, columns)
		return append(nodes{y}, graph.Gradient(graph.ReduceAllSum(graph.Mul(y, v)), in[0], in[1])...)
	}
	want := run(t, devicetest.One(), step, x, w, v)
	precision.WithFP8(t)
	for i, got := range run(t, devicetest.One(), step, x, w, v) {
		near(t, "result", floats(got), floats(want[i]), depth*0x1p-24)
	}
}

// An infinity or NaN in an operand shows in every number of the result, so that loss scaling notices.
func TestFP8NotFinite(t *testing.T) {
	precision.WithFP8(t)
	m := fp8(t)
	for _, x := range []float64{math.Inf(1), math.Inf(-1), math.NaN()} {
		out := run(t, devicetest.One(), func(in nodes) nodes {
			y := m.Dot(in[0], []int{1}, nil, in[1], []int{0}, nil)
			return append(nodes{y}, graph.Gradient(graph.ReduceAllSum(graph.Mul(y, in[2])), in[1])...)
		}, matrix{{1, 2}, {float32(x), 3}}, ones(2, 2), ones(2, 2))
		for i, got := range out {
			for _, y := range floats(got) {
				if y == y {
					t.Errorf("with %g, result %d is %v, want NaNs", x, i, floats(got))
					break
				}
			}
		}
	}
}

// A linear layer of the policy "fp8" is three matmuls of cuBLASLt's on an H100, as a GPU computes it and not simulated.
func TestFP8OnGPUs(t *testing.T) {
	m := fp8(t)
	mesh := must.Get(devicetest.OpenFor(t, "h100", 1).Mesh(xla.Axis("data", 1)))(t)
	p := must.Get(xla.Compile(mesh, func(in nodes) nodes {
		y := m.Dot(in[0], []int{-1}, nil, in[1], []int{0}, nil)
		wide := graph.ConvertDType(y, dtypes.Float32)
		return append(nodes{y}, graph.Gradient(graph.ReduceAllSum(graph.Sin(wide)), in...)...)
	}, xla.In(xla.Replicated(), xla.Replicated()).Gives(xla.Replicated(), xla.Replicated(), xla.Replicated())))(t)
	defer p.Close()
	const batch, tokens, width, hidden = 4, 256, 512, 1024
	bf16 := func(dims ...int) *tensors.Tensor { return tensors.FromShape(shapes.Make(dtypes.BFloat16, dims...)) }
	must.Do(t, p.Prepare(bf16(batch, tokens, width), bf16(width, hidden)))
	calls := 0
	for _, o := range must.Get(p.Operations())(t) {
		if o.Target == "__cublas$lt$matmul$f8" && o.FLOPs == 2*batch*tokens*width*hidden {
			calls++
		}
	}
	if calls != 3 {
		t.Errorf("%d matmuls of cuBLASLt's, want 3", calls)
	}
}
