package flash

import (
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
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
