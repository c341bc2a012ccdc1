package parallel_test

import (
	"context"
	"math"
	"testing"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
	"github.com/shardbook/shardbook/internal/traintest"
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

// gpuBound is by how much of it a loss on GPUs may differ from that on a CPU, in float32: sums and functions such as
// exponentials round differently.
const gpuBound = 1e-4

// TestGPULayouts trains on GPUs, which ranks share: the same losses as one CPU device.
func TestGPULayouts(t *testing.T) {
	devicetest.GPU(t)
	for i, f := range formsOf() {
		if i%5 != 0 {
			continue
		}
		t.Run(f.String(), func(t *testing.T) {
			gpus := devicetest.OpenShared(t, f.Devices(), f.PerRank()) // or skipped, where a rank has too few
			r := train.Recipe{Model: small(f.layers), Optimizer: optim.AdamW(1e-2), Clip: f.clip}
			_, want := traintest.Alone(t, devices(), r, layoutSteps, texts(layoutRows))
			run := must.Get(parallel.New(t.Context(), gpus, sharing(r, f.Layout, f.placement), f.Layout,
				parallel.Options{}))(t)
			for i, m := range steps(t, run, layoutSteps, texts(layoutRows)) {
				if off := math.Abs(m.Loss/want[i].Loss - 1); !(off <= gpuBound) {
					t.Errorf("step %d: the loss is %g, on a CPU %g", i, m.Loss, want[i].Loss)
				}
			}
			must.Do(t, run.Close())
		})
	}
}
