package parallel_test

import (
	"context"
	"testing"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/train"
)

// TestLayoutsOnGPUs has XLA compile all programs of some layouts for GPUs, which need not be here. Each has dozens of
// programs, which take it a second.
func TestLayoutsOnGPUs(t *testing.T) {
	gpus := devicetest.OpenFor(t, "h100", deviceCount)
	var few []form
	for i, f := range formsOf() {
		if i%20 == 4 {
			few = append(few, f)
		}
	}
	for _, f := range systest.OfFull(t, 1, few) {
		t.Run(f.String(), func(t *testing.T) {
			r := train.Recipe{Model: small(f.layers), Optimizer: optim.AdamW(1e-2), Clip: f.clip}
			run := must.Get(parallel.New(context.Background(), gpus, sharing(r, f.Layout, f.placement), f.Layout,
				parallel.Options{Staged: f.shared}))(t)
			steps(t, run, 2, texts(layoutRows))
			must.Do(t, run.Close())
		})
	}
}
