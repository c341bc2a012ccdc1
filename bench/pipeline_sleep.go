package main

import (
	"context"
	"encoding/json"
	"time"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/train"
)

// plannedCase reads a case, and makes its schedule.
func plannedCase(params []byte) (c pipelineCase, plan *step.Plan, err error) {
	if err = json.Unmarshal(params, &c); err == nil {
		plan, err = c.schedule()
	}
	return c, plan, err
}

// simulated takes just what a schedule's simulation says. It is a subject for ratios.
type simulated struct{ ms float64 }

func serveSimulated(context.Context) (subject, func(), error) { return &simulated{}, func() {}, nil }

func (s *simulated) prepare(params []byte) error {
	c, plan, err := plannedCase(params)
	if err != nil {
		return err
	}
	line, err := plan.Simulate(c.costs())
	s.ms = line.Makespan
	return err
}

func (s *simulated) sample(int) (float64, error) { return s.ms, nil }
func (s *simulated) finish() error               { return nil }

// sleepers train the smallest model, a layer for each stage, whose passes take as long as is said: ranks that sleep.
type sleepers struct{ trainXLA }

func serveSleepers(ctx context.Context) (subject, func(), error) {
	backend, err := openXLA(ctx, pipelineRanks)
	if err != nil {
		return nil, nil, err
	}
	return &sleepers{trainXLA{backend: backend}}, backend.Close, nil
}

func (s *sleepers) prepare(params []byte) error {
	c, plan, err := plannedCase(params)
	if err != nil {
		return err
	}
	costs := c.costs()
	s.start = startPlan(pipeline.Options{Schedule: plan, Fused: true,
		Pace: func(op step.Op) time.Duration { return time.Duration(costs.Time(op) * float64(time.Millisecond)) }})
	return s.begin(c.smallest())
}

// smallest is a recipe of a layer for each stage, of one number for each micro-batch, and its batch.
func (c pipelineCase) smallest() (r train.Recipe, inputs, targets *tensors.Tensor) {
	c.Layers, c.Width, c.Rows = c.Stages, 1, c.Microbatches
	inputs, targets = c.batch()
	return train.Recipe{Model: c.model(), Optimizer: optim.SGD(pipelineRate)}, inputs, targets
}

// facts are none: what is learnt does not matter.
func (s *sleepers) facts() (facts, error) { return facts{}, nil }

func (s *sleepers) finish() error { return s.run.Close() }
