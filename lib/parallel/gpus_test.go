package parallel_test

import (
	"context"
	"os"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// TestLayoutsOnGPUs has XLA compile all programs of layouts for GPUs, which need not be here.
func TestLayoutsOnGPUs(t *testing.T) {
	gpus := must.Get(xla.Open(xla.CompileFor("h100"), xla.Plugin(os.Getenv("CUDAP")), xla.Devices(deviceCount)))(t)
	defer gpus.Close()
	for _, f := range systest.Pairwise(t, formsOf(), form.factors) {
		t.Run(f.String(), func(t *testing.T) {
			r := train.Recipe{Model: small(f.layers), Optimizer: optim.AdamW(1e-2), Clip: f.clip}
			run := must.Get(parallel.New(context.Background(), gpus, sharing(r, f.Layout, f.placement), f.Layout,
				parallel.Options{Staged: f.shared}))(t)
			steps(t, run, 2, texts(layoutRows))
			must.Do(t, run.Close())
		})
	}
}
