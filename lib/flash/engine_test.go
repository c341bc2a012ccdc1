package flash

import (
	"maps"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/xla"
)

// Which calls cuDNN supports, as far as this can be tested without a GPU.
func TestCuDNNRule(t *testing.T) {
	bf16 := dtypes.BFloat16
	for _, c := range []struct {
		of         dtypes.DType
		t, s, d, e int
		change     func(o *Options, g *graph.Graph)
		want       string // "" if it can
	}{
		{bf16, 64, 64, 64, 64, nil, ""},
		{dtypes.Float16, 5, 5, 128, 128, func(o *Options, _ *graph.Graph) { o.Causal = true }, ""},
		{dtypes.Float32, 64, 64, 64, 64, nil, "its type is Float32"},
		{bf16, 64, 65, 64, 64, nil, "64 queries and 65 keys"},
		{bf16, 64, 64, 60, 60, nil, "heads of width 60 and 60"},
		{bf16, 64, 64, 136, 136, nil, "up to 128"},
		{bf16, 64, 64, 64, 32, nil, "heads of width 64 and 32"},
		{bf16, 64, 64, 64, 64, func(o *Options, _ *graph.Graph) { o.Window = 3 }, "a window"},
		{bf16, 64, 64, 64, 64, func(o *Options, g *graph.Graph) {
			o.KeyPositions = graph.Iota(g, shapes.Make(dtypes.Int32, 64), 0)
		}, "positions"},
	} {
		exec := must.Get(graph.NewExec(devicetest.One(), func(g *graph.Graph) *graph.Node {
			zeros := func(n, width int) *graph.Node { return graph.Zeros(g, shapes.Make(c.of, 1, n, 2, width)) }
			var o Options
			if c.change != nil {
				c.change(&o, g)
			}
			call := newCall(zeros(c.t, c.d), zeros(c.s, c.d), zeros(c.s, c.e), o)
			if got := call.cudnnProblem(); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
				t.Errorf("%v: %q, want %q", c.of, got, c.want)
			}
			if call.onCUDA() || call.engine() == CuDNN {
				t.Error("cuDNN on a CPU")
			}
			return zeros(1, 1)
		}))(t)
		exec.MustCall()
	}
}

// On an H100, a step through attention is one call of cuDNN's forward and one backward, which recomputes the scores
// from the softmax statistics that the first saved: on one device, on shards of the batch, and with fewer key heads.
func TestCuDNNOnGPUs(t *testing.T) {
	const b, tokens, heads = 2, 256, 4
	for _, devices := range []int{1, 2} {
		mesh := must.Get(devicetest.OpenFor(t, "h100", devices).Mesh(xla.Axis("data", devices)))(t)
		for _, c := range []struct {
			of              dtypes.DType
			keyHeads, width int
			o               Options
			pairs           float64 // of positions that see each other
		}{
			{dtypes.BFloat16, heads, 64, Causal(), tokens * (tokens + 1) / 2},
			{dtypes.BFloat16, heads, 128, Options{}, tokens * tokens},
			{dtypes.Float16, 1, 128, Causal(), tokens * (tokens + 1) / 2},
		} {
			shard := xla.Shard(0, "data")
			p := must.Get(xla.Compile(mesh, func(q, k, v *graph.Node) []*graph.Node {
				y := graph.ConvertDType(Attention(q, k, v, c.o), dtypes.Float32)
				return graph.Gradient(graph.ReduceAllSum(graph.Square(y)), q, k, v)
			}, xla.In(shard, shard, shard).Gives(shard, shard, shard)))(t)
			x := func(heads int) *tensors.Tensor {
				return tensors.FromShape(shapes.Make(c.of, b*devices, tokens, heads, c.width))
			}
			must.Do(t, p.Prepare(x(heads), x(c.keyHeads), x(c.keyHeads)))
			calls := map[string]float64{}
			for _, o := range must.Get(p.Operations())(t) {
				if o.Kind == "custom-call" {
					calls[o.Target] += o.FLOPs
				}
			}
			matmul := 2 * b * heads * c.pairs * float64(c.width)
			want := map[string]float64{"__cudnn$fmhaSoftmax": 2 * matmul, "__cudnn$fmhaSoftmaxBackward": 5 * matmul}
			if !maps.Equal(calls, want) {
				t.Errorf("%d devices, %v of width %d: FLOPs of %v, want %v", devices, c.of, c.width, calls, want)
			}
			p.Close()
		}
	}
}
