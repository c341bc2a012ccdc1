package memest_test

import (
	"testing"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/offload"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
)

// With optimizer states and block inputs in host memory, a run's states are those of the estimate, to the byte.
func TestEstimatesOfOffload(t *testing.T) {
	policy := must.Get(precision.ParsePolicy("bf16"))(t)
	c := gpt.Config{Layers: 1, Width: 16, Heads: 2, Seq: 8, Vocab: 32}
	recipe := train.Recipe{Model: c, Optimizer: optim.AdamW(1e-3), Precision: policy}
	run := must.Get(offload.New(t.Context(), devicetest.Open(t, 1), recipe,
		offload.Options{Host: offload.Host{Update: true, Activations: true}}))(t)
	defer run.Close()
	tokens := tensors.FromFlatDataAndDimensions(make([]int32, 2*c.Seq), 2, c.Seq)
	must.Get(run.Step(t.Context(), tokens, tokens))(t)
	l := must.Get(memest.Estimate(memest.Setup{Model: cost.FromGPT(c), Batch: 2, Precision: policy,
		Optimizer: recipe.Optimizer, Recompute: "block",
		OffloadOptimizer: true, OffloadActivations: true}))(t)
	estimated := map[memest.Kind]int64{}
	for _, it := range l.Stages[0].Items {
		if kind := it.Kind; it.Host {
			estimated["host "+kind] += it.Bytes
		} else {
			estimated[kind] += it.Bytes
		}
	}
	for _, kind := range []memest.Kind{memest.Parameters, "host " + memest.Master, "host " + memest.Optimizer} {
		if got := run.Memory()[kind]; got != estimated[kind] {
			t.Errorf("%s: estimated %d bytes, measured %d", kind, estimated[kind], got)
		}
	}
}
