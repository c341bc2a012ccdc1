package fused

import (
	"fmt"
	"slices"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/native"
	"github.com/shardbook/shardbook/lib/xla"
)

// onGPUs opens a GPU, or skips a test: with XLA's operations, and with CUDA kernels in their place.
func onGPUs(t testing.TB) (xlas, own *xla.Backend) {
	t.Helper()
	devicetest.GPU(t)
	own = must.Get(xla.Open(xla.Devices(1), xla.Plugin(devicetest.Plugin()), xla.CUDAKernels()))(t)
	t.Cleanup(own.Close)
	return devicetest.One(), own
}

// TestGPUKernels: with a GPU, the CUDA kernels' results and gradients differ from those in float64 by at most twice as
// much as those of XLA's operations, and a few roundings.
func TestGPUKernels(t *testing.T) {
	xlas, own := onGPUs(t)
	for _, o := range operations() {
		if o.name != "BiasGELU" {
			continue
		}
		exact := o.run(t, xlas, dtypes.Float64, o.of)
		for of := range functions {
			got, plain := o.run(t, own, of, o.of), o.run(t, xlas, of, o.of)
			for i := range exact {
				is, size := apart(got[i], exact[i])
				may, _ := apart(plain[i], exact[i])
				if !(is <= 2*may+8*rounding[of]*size) {
					t.Errorf("%v of %v, result %d: error %g, of XLA's operations %g", of, o.dims, i, is, may)
				}
			}
		}
	}
}

// TestCUDAKernelsCompile: programs for a GPU that is not here call the CUDA kernels if they are to.
func TestCUDAKernelsCompile(t *testing.T) {
	for _, own := range []bool{false, true} {
		var options []xla.Option
		if own {
			options = append(options, xla.CUDAKernels())
		}
		b := devicetest.OpenFor(t, "h100", 1, options...)
		p := must.Get(xla.Compile(must.Get(b.Mesh(xla.Axis("x", 1)))(t), func(x, bias *graph.Node) (y, d *graph.Node) {
			y = BiasGELU(x, bias)
			return y, graph.Gradient(graph.ReduceAllSum(graph.Sin(y)), x)[0]
		}, xla.In(xla.Replicated(), xla.Replicated()).Gives(xla.Replicated(), xla.Replicated())))(t)
		defer p.Close()
		must.Do(t, p.Prepare(tensors.FromShape(shapes.Make(dtypes.Float32, 64, 256)),
			tensors.FromShape(shapes.Make(dtypes.Float32, 256))))
		var calls []string
		for _, o := range must.Get(p.Operations())(t) {
			if o.Target != "" {
				calls = append(calls, o.Target)
			}
		}
		slices.Sort(calls)
		want := []string{"shardbook_cheap_cuda_gelu", "shardbook_cheap_cuda_gelu_gradient"}
		if slices.Equal(calls, want) != own {
			t.Errorf("with CUDA kernels (%v) the compiled program calls %q", own, calls)
		}
	}
}

// BenchmarkCUDABiasGELU compares the CUDA kernels, forward and with the gradient, with what XLA makes of the same
// operations, for the MLP of a GPT-2 of 124M parameters with 16 sequences of 1024 tokens.
func BenchmarkCUDABiasGELU(b *testing.B) {
	xlas, own := onGPUs(b)
	gpu := must.Get(native.FirstGPU())(b)
	for of := range functions {
		x := shapes.Make(of, 16*1024, 4*768)
		inputs := func(in []*graph.Node) []*graph.Node {
			one := graph.ConvertDType(in[0], of)
			at := graph.Sin(graph.Iota(one.Graph(), shapes.Make(of, x.Dimensions...), 1))
			return []*graph.Node{at, graph.Mul(graph.BroadcastToDims(one, x.Dim(1)), one), graph.Cos(at)}
		}
		for name, fn := range map[string]func(in []*graph.Node) []*graph.Node{
			"forward": func(in []*graph.Node) []*graph.Node { return []*graph.Node{BiasGELU(in[0], in[1])} },
			// Of a sum whose output gradient is in[2]: the forward pass is not needed, so XLA drops it.
			"gradient": func(in []*graph.Node) []*graph.Node {
				return graph.Gradient(graph.ReduceAllSum(graph.Mul(BiasGELU(in[0], in[1]), in[2])), in[0], in[1])
			},
		} {
			arrays := map[string]int{"forward": 2, "gradient": 3}[name] // that are read and written
			b.Run(fmt.Sprint(of, "/", name), func(b *testing.B) {
				for range b.N {
					mine, theirs := devicetest.Seconds(b, own, inputs, fn), devicetest.Seconds(b, xlas, inputs, fn)
					devicetest.Compare(b, mine, theirs, float64(arrays)*float64(x.ByteSize()), gpu.Bandwidth)
				}
			})
		}
	}
}
