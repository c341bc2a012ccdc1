package pipeline

import (
	"context"
	"time"

	"github.com/gomlx/compute/shapes"

	"github.com/shardbook/shardbook/internal/engine"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// BlockCost is the measured cost of a block for one micro-batch.
type BlockCost struct {
	Name string
	// Forward, Backward, InputGrad and WeightGrad are the shortest measured times of the passes; Backward is one
	// program for both parts (Options.Fused). InputGrad is 0 for the first block, and WeightGrad for a block without
	// parameters.
	Forward, Backward, InputGrad, WeightGrad time.Duration
	// Weights is the size of the parameters, Saved that of the saved activations including the input, in bytes.
	Weights, Saved int64
}

// Measure runs the passes of each block of a recipe's model on a device, several times, for micro-batches of zeros of
// the given shapes. Blocks that share programs are measured once, and the device holds one block at a time.
func Measure(ctx context.Context, backend *xla.Backend, device int, r train.Recipe, inputs, targets shapes.Shape) (
	costs []BlockCost, err error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	if backend == nil {
		return nil, errNoBackend
	}
	model, err := chain.Of(r.Model)
	if err != nil {
		return nil, err
	}
	r.Model = model
	all, err := engine.Measure(ctx, backend, device, r, inputs, targets)
	for _, c := range all {
		costs = append(costs, BlockCost{Name: c.Name, Forward: c.Took[step.Forward], Backward: c.Took[step.Backward],
			InputGrad: c.Took[step.InputGrad], WeightGrad: c.Took[step.WeightGrad], Weights: c.Weights, Saved: c.Saved})
	}
	return costs, err
}

// Costs adds up the costs of each stage's blocks, in seconds and bytes, for [step.Plan.Simulate] and [Search]. Cut is
// the number of blocks of each stage. A backward pass costs as much as its two parts.
func Costs(blocks []BlockCost, cut []int) step.Costs {
	var c step.Costs
	for _, n := range cut {
		var stage BlockCost
		for _, b := range blocks[:min(n, len(blocks))] {
			stage.Forward, stage.Saved = stage.Forward+b.Forward, stage.Saved+b.Saved
			stage.InputGrad, stage.WeightGrad = stage.InputGrad+b.InputGrad, stage.WeightGrad+b.WeightGrad
		}
		blocks = blocks[min(n, len(blocks)):]
		c.Forward = append(c.Forward, stage.Forward.Seconds())
		c.InputGrad = append(c.InputGrad, stage.InputGrad.Seconds())
		c.WeightGrad = append(c.WeightGrad, stage.WeightGrad.Seconds())
		c.Activation = append(c.Activation, float64(stage.Saved))
	}
	return c
}
