package memest

import (
	"fmt"
	"strings"
	"testing"
)

// deepSpeedPrints formats bytes as the documentation does.
func deepSpeedPrints(bytes int64, want string) string {
	if strings.HasSuffix(want, "MB") {
		return fmt.Sprintf("%dMB", bytes>>20)
	}
	return fmt.Sprintf("%.2fGB", float64(bytes)/(1<<30))
}

func TestDeepSpeedDocumentation(t *testing.T) {
	for _, r := range publishedTable(t, "deepspeed.csv") {
		d := DeepSpeed{Stage: int(r.number("stage")), Params: r.number("params"), LargestLayer: r.number("largest"),
			GPUsPerNode: int(r.number("gpus")), OffloadOptimizer: r.number("offload_optimizer") == 1,
			OffloadParams: r.number("offload_params") == 1, ZeroInit: r.number("zero_init") == 1}
		s := listed(t)(d.States())
		if want := r.text("gpu"); deepSpeedPrints(s.Bytes(), want) != want {
			t.Errorf("%+v: %s a GPU, want %s", d, deepSpeedPrints(s.Bytes(), want), want)
		}
		if want := r.text("cpu"); want != "" && deepSpeedPrints(s.HostBytes(), want) != want {
			t.Errorf("%+v: %s a node, want %s", d, deepSpeedPrints(s.HostBytes(), want), want)
		}
	}
}

// DeepSpeed's documented formulas, written again as Go.
func TestDeepSpeedFormulas(t *testing.T) {
	const P, l = 7 << 20, 3 << 10 // no rounding
	for _, nodes := range []int{1, 2, 8} {
		for _, gpus := range []int{1, 4, 8} {
			N := nodes * gpus
			factor := float64(1) / float64(nodes)
			for _, c := range []struct {
				d         DeepSpeed
				gpu, node float64
			}{
				{DeepSpeed{Stage: 2}, 2*P + 18*P/float64(N), P * 4 * float64(gpus) * 1.5},
				{DeepSpeed{Stage: 2, OffloadOptimizer: true}, 2 * P, P * float64(max(4*N, 16)) * 1.5},
				{DeepSpeed{Stage: 3}, 4*l + 18*P/float64(N), P * 4 * float64(gpus) * 1.5},
				{DeepSpeed{Stage: 3, ZeroInit: true}, 4*l + 18*P/float64(N), l * 4 * float64(gpus) * 1.5},
				{DeepSpeed{Stage: 3, OffloadOptimizer: true}, 4*l + 2*P/float64(N),
					P * max(float64(4*gpus), 16*factor) * 1.5},
				{DeepSpeed{Stage: 3, OffloadOptimizer: true, ZeroInit: true}, 4*l + 2*P/float64(N),
					P * 16 * factor * 1.5},
				{DeepSpeed{Stage: 3, OffloadOptimizer: true, OffloadParams: true}, 4 * l,
					P * max(float64(4*gpus), 18*factor) * 1.5},
				{DeepSpeed{Stage: 3, OffloadOptimizer: true, OffloadParams: true, ZeroInit: true}, 4 * l,
					P * 18 * factor * 1.5},
			} {
				d := c.d
				d.Params, d.LargestLayer, d.GPUsPerNode, d.Nodes = P, l, gpus, nodes
				if s := listed(t)(d.States()); float64(s.Bytes()) != c.gpu || float64(s.HostBytes()) != c.node {
					t.Errorf("%+v: %d and %d, want %g and %g", d, s.Bytes(), s.HostBytes(), c.gpu, c.node)
				}
			}
		}
	}
}
