package memest_test

import (
	"context"
	"testing"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/offload"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/xla"
)

// A run with its optimizer's states and its blocks' inputs in host memory holds what the estimate says, to the byte.
func TestEstimatesOfOffload(t *testing.T) {
	backend := devicetest.Open(t, 1)
	mesh, err := backend.Mesh(xla.Axis("data", 1))
	if err != nil {
		t.Fatal(err)
	}
	policy, err := precision.ParsePolicy("bf16")
	if err != nil {
		t.Fatal(err)
	}
	c := gpt.Config{Layers: 1, Width: 16, Heads: 2, Seq: 8, Vocab: 32}
	model, err := c.Chain()
	if err != nil {
		t.Fatal(err)
	}
	rule := optim.AdamW(1e-3)
	run, err := offload.New(mesh, model, rule, offload.Options{Precision: policy, Optimizer: offload.Host, Activations: offload.Host})
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	tokens := tensors.FromFlatDataAndDimensions(make([]int32, 2*c.Seq), 2, c.Seq)
	if _, err := run.Step(context.Background(), tokens, tokens); err != nil {
		t.Fatal(err)
	}
	l, err := memest.Estimate(memest.Setup{Model: cost.FromGPT(c), Batch: 2, Precision: policy, Rule: rule, Recompute: "block",
		OffloadOptimizer: true, OffloadActivations: true})
	if err != nil {
		t.Fatal(err)
	}
	estimated := map[string]int64{}
	for _, it := range l.Stages[0].Items {
		switch {
		case it.Kind == memest.Parameters:
			estimated["parameters on the device"] += it.Bytes
		case it.Host && (it.Kind == memest.Master || it.Kind == memest.Optimizer):
			estimated["optimizer on the host"] += it.Bytes
		}
	}
	memory := run.Memory()
	for what, got := range map[string]int64{
		"parameters on the device": memory.Device.Now[offload.Parameters],
		"optimizer on the host":    memory.Host.Now[offload.Optimizer],
	} {
		if got != estimated[what] {
			t.Errorf("%s: estimated %d bytes, measured %d", what, estimated[what], got)
		}
	}
	t.Logf("%+v", memory)
}
