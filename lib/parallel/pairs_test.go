package parallel_test

import (
	"slices"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/expert"
	"github.com/shardbook/shardbook/lib/offload"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/train"
)

// TestPairsStay looks for DualPipe's pairs in the plans of layouts, whatever else is in the lists.
func TestPairsStay(t *testing.T) {
	for _, l := range []parallel.Layout{{}, {Recompute: true}, {Data: 2, ZeRO: 2}, {Tensor: 2, Partition: true},
		{Replicas: 2, ZeRO: 1}, {Replicas: 2, ZeRO: 2}, {Replicas: 2, ZeRO: 3, Prefetch: 2},
		{Replicas: 2, ZeRO: 3, Recompute: true}, {Replicas: 2, Expert: 2, ZeRO: 1},
		{Replicas: 4, Expert: 2, ZeRO: 3, Prefetch: 1}, {Offload: offload.Host{Update: true, Prefetch: 2}, Replicas: 2},
		{Offload: offload.Host{Optimizer: true, Prefetch: 5}}, {Offload: offload.Host{Activations: true, Prefetch: 7}},
		{Offload: offload.Host{Activations: true}, Recompute: true},
		{Offload: offload.Host{Activations: true, Prefetch: 3}, Recompute: true}} {
		l.Pipe, l.Schedule, l.Microbatches = 2, pipeline.KindDualPipe, 6
		r := sharing(train.Recipe{Model: experts(expert.Softmax, 0), Optimizer: optim.AdamW(0.1)}, l, "")
		p := must.Get(parallel.NewPlan(r, l))(t).Step()
		for rank, list := range p.Ranks {
			pairs := slices.DeleteFunc(slices.Compact(p.Pairs(rank)), func(p step.Pair) bool { return p.To == 0 })
			paired := slices.DeleteFunc(slices.Clone(list), func(op step.Op) bool { return !op.Paired })
			if blocks := len(p.On(rank)); len(pairs) != 4 || len(paired) < 2*blocks {
				t.Errorf("%v: rank %d of %d blocks has the pairs %v of the passes %v", l, rank, blocks, pairs, paired)
			}
		}
	}
}
