package pipeline

import (
	"context"
	"fmt"
	"time"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/pipeline/schedule"
	"github.com/shardbook/shardbook/lib/xla"
)

// BlockCost is what one block costs for one micro-batch.
type BlockCost struct {
	Name string
	// Forward, Backward, InputGrad and WeightGrad are the least times of the passes, Backward that of one program for both halves
	// (Options.Fused). InputGrad is 0 for the first block, and WeightGrad for one without parameters.
	Forward, Backward, InputGrad, WeightGrad time.Duration
	// Weights are the bytes of the parameters, Stash those of what is kept between the passes, the input among it.
	Weights, Stash int64
}

// Measure runs the passes of each block on a device, several times, for micro-batches of the shape of the given one; the values that
// they compute with are zeros. Equal blocks are measured once. It compiles the programs of all passes.
func (e *Engine) Measure(ctx context.Context, device int, inputs, targets shapes.Shape) ([]BlockCost, error) {
	all, err := e.sizesOf(inputs, targets)
	if err != nil {
		return nil, err
	}
	var costs []BlockCost
	twins := e.model.Twins()
	for i, b := range e.blocks {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if twins[i] < i {
			like := costs[twins[i]]
			like.Name = b.Name
			costs = append(costs, like)
			continue
		}
		c, err := e.measureBlock(i, device, all[i])
		if err != nil {
			return nil, fmt.Errorf("pipeline: measuring block %q: %w", b.Name, err)
		}
		costs = append(costs, c)
	}
	return costs, nil
}

func (e *Engine) measureBlock(i, device int, s sizes) (c BlockCost, err error) {
	b := e.blocks[i]
	c = BlockCost{Name: b.Name, Weights: bytesOf(s.weights), Stash: s.x.ByteSize() + bytesOf(s.kept)}
	some := []shapes.Shape{shapes.Make(someType)}
	for _, m := range []struct {
		program *xla.Portable
		donated int
		in      []shapes.Shape
		took    *time.Duration
	}{
		{b.forward, 0, s.operands, &c.Forward},
		{b.backward, len(s.sums), join(s.sums, some, s.above, s.operands, s.kept), &c.Backward},
		{b.input, 0, join(s.above, s.operands, s.kept), &c.InputGrad},
		{b.weights, len(s.sums), join(s.sums, some, s.above, s.operands, s.kept, s.left), &c.WeightGrad},
	} {
		if m.program == nil {
			continue
		}
		if *m.took, err = e.least(m.program, device, m.donated, m.in); err != nil {
			return c, err
		}
	}
	return c, nil
}

func bytesOf(list []shapes.Shape) (n int64) {
	for _, s := range list {
		n += s.ByteSize()
	}
	return n
}

// least runs a program several times on zeros, and returns the least time that it took. The first inputs are donated to it.
func (e *Engine) least(program *xla.Portable, device, donated int, in []shapes.Shape) (took time.Duration, err error) {
	const times = 10
	args := make([]any, len(in))
	put := func(n int) error {
		for i := range n {
			t, err := e.backend.Put(tensors.FromShape(in[i]), device)
			if err != nil {
				return err
			}
			args[i] = t
		}
		return nil
	}
	if err := put(len(in)); err != nil {
		return 0, err
	}
	defer func() {
		for _, a := range args {
			if t, ok := a.(*tensors.Tensor); ok && t.IsOnAnyDevice() {
				_ = rank.Free(t)
			}
		}
	}()
	for n := range times + 1 { // the first compiles
		begin := time.Now()
		out, err := program.Call(device, args...)
		if d := time.Since(begin); err == nil && n > 0 && (took == 0 || d < took) {
			took = d
		}
		if err == nil {
			err = rank.Free(out...)
		}
		if err == nil {
			err = put(donated)
		}
		if err != nil {
			return 0, err
		}
	}
	return took, nil
}

// Costs are what the stages of a cut cost, in seconds and bytes, as [schedule.Schedule.Simulate] and [schedule.Search] take them. A
// whole backward pass is its two halves.
func Costs(blocks []BlockCost, cut []int) schedule.Costs {
	var c schedule.Costs
	for _, n := range cut {
		var stage BlockCost
		for _, b := range blocks[:min(n, len(blocks))] {
			stage.Forward, stage.Stash = stage.Forward+b.Forward, stage.Stash+b.Stash
			stage.InputGrad, stage.WeightGrad = stage.InputGrad+b.InputGrad, stage.WeightGrad+b.WeightGrad
		}
		blocks = blocks[min(n, len(blocks)):]
		c.Forward = append(c.Forward, stage.Forward.Seconds())
		c.InputGrad = append(c.InputGrad, stage.InputGrad.Seconds())
		c.WeightGrad = append(c.WeightGrad, stage.WeightGrad.Seconds())
		c.Activation = append(c.Activation, float64(stage.Stash))
	}
	return c
}
