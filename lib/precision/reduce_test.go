package precision_test

import (
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/precision"
)

// A mean of numbers whose sum overflows FP16, and sums over some axes that are rounded once, at the end.
func TestReduce(t *testing.T) {
	for name, backend := range backends() {
		out := run(t, backend, func(in nodes) nodes {
			x := precision.Cast(in, dtypes.Float16)
			results := nodes{precision.Mean(x[0]), precision.Sum(x[1], 1), precision.Mean(x[1], 0),
				precision.Sum(in[0])}
			for i, r := range results[:3] {
				if r.DType() != dtypes.Float16 {
					t.Errorf("%s: result %d is %s, want Float16", name, i, r.DType())
				}
				results[i] = graph.ConvertDType(r, dtypes.Float32)
			}
			return results
		}, []float32{60000, 49984, 64000}, matrix{{2048, 1, 1, 1}, {0, 1, 2, 3}})
		// 2051 is a tie in FP16, if XLA rounds to it
		for i, want := range [][]float32{{57984}, {2052, 6}, {1024, 1, 1.5, 2}, {173984}} {
			for j := range want {
				if got := floats(out[i])[j]; got != want[j] && !(want[j] == 2052 && got == 2051) {
					t.Errorf("%s: result %d element %d is %g, want %g", name, i, j, got, want[j])
				}
			}
		}
	}
}
