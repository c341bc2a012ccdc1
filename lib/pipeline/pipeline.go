// Package pipeline trains with pipeline parallelism: each rank has one or more stages, which are consecutive blocks of
// the model, and micro-batches pass from stage to stage and back. A schedule says which rank computes what in which
// order. It is a plan of a step (lib/step) whose blocks are the stages: [NewSchedule] builds the published ones,
// [Search] finds one for measured costs, and any other can be written by hand.
//
// [New] trains with a rank for each device, and [Join] makes a process one rank of a group; both return a
// train.Trainer. [Spread] is the underlying rewrite: it turns a schedule and a model into each rank's operations, block
// by block.
package pipeline

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/shardbook/shardbook/internal/engine"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/recompute"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// Names of the traffic between ranks in the trainer's Traffic.
const (
	BetweenStages = engine.BetweenStages // activations and their gradients
	BetweenRanks  = "replica"            // gradients of replicas
)

// Options configure pipeline parallelism.
type Options struct {
	// Schedule is what the ranks of one pipeline do in a step; its blocks are the stages, and its micro-batches those
	// of the step. An asynchronous schedule ([Kind.Synchronous] is false), which updates several times per step, drains
	// the pipeline at the end of each step, so give it many micro-batches.
	Schedule *step.Plan
	// Cut is the number of blocks of each stage, in order; nil means [Even]. [Balance] computes one from the blocks'
	// costs.
	Cut []int
	// Replicas is the number of pipelines that train together, each with its shard of the batch (data parallelism); 0
	// means 1. The first ranks of the group are the first pipeline, and so on.
	Replicas int
	// Recompute saves only a stage's input for each micro-batch, and recomputes the stage before its backward pass
	// (Huang et al. 2019, "GPipe", §2.3). Otherwise all activations that are costly to recompute are saved.
	Recompute bool
	// Fused compiles one program for a backward pass that the schedule does not split. It is somewhat faster than the
	// two programs of its parts, but rounds differently. Without Fused all schedules on several ranks compute the same
	// bits, except for parameters that several blocks or several ranks of a pipeline share, as all are in DualPipe.
	Fused bool
	// Timeout is the maximal time of a block's pass; an update may take twice as long. 0 means group.DefaultTimeout, or
	// an hour if all ranks are in one process. If a rank takes longer, training fails on all ranks with an error that
	// names the operation.
	Timeout time.Duration
	// Pace, if not nil, returns the minimal duration of a pass of a stage: it simulates devices whose passes overlap on
	// any number of cores. The operation's block is the stage. Updates are of all units of the rank (-1). Unless Fused,
	// a backward pass that the schedule does not split is an InputGrad and a WeightGrad.
	Pace func(op step.Op) time.Duration
	// Trace, if not nil, records a span for each operation, and counters of memory by kind.
	Trace *trace.Recorder
}

// Plan returns what each rank does in a training step, block by block. It needs no devices.
func (o Options) Plan(r train.Recipe) (*step.Plan, error) {
	s, err := o.spec(r)
	if err != nil {
		return nil, err
	}
	return s.Plans[0], nil
}

// New starts training on the backend's first devices, with a rank for each. The model is a chain of blocks (such as
// gpt.Config: see package chain); any other model is one block, and so one stage. It returns an error if there are more
// stages than blocks, if the cut does not fit, if there are too few devices, or if an asynchronous schedule is combined
// with gradient clipping, loss scaling or parameters that several ranks share. The context is for starting; each call
// of the trainer has its own.
func New(ctx context.Context, backend *xla.Backend, r train.Recipe, o Options) (train.Trainer, error) {
	s, err := o.spec(r)
	if err != nil {
		return nil, err
	}
	return engine.Start(ctx, backend, s)
}

// Join makes this process one rank of a group, on one of the backend's devices. The group has Options.Replicas times as
// many ranks as the schedule; those of a pipeline are neighbours. It is a collective call: all ranks start with rank
// 0's initial state.
func Join(ctx context.Context, g group.Group, backend *xla.Backend, device int, r train.Recipe, o Options) (
	train.Trainer, error) {
	s, err := o.spec(r)
	if err != nil {
		return nil, err
	}
	if n := len(s.Plans[0].Ranks); g.Size() != n {
		return nil, fmt.Errorf("pipeline: a group of %d ranks for %d pipelines of %d ranks: use a group of %d",
			g.Size(), max(o.Replicas, 1), len(o.Schedule.Ranks), n)
	}
	return engine.Join(ctx, g, backend, device, s)
}

var errNoBackend = errors.New("pipeline: the backend is nil: open one with xla.Open")

// spec returns the engine's description of a run.
func (o Options) spec(r train.Recipe) (s engine.Spec, err error) {
	switch {
	case o.Schedule == nil:
		return s, errors.New("pipeline: Options.Schedule is nil: build one with NewSchedule")
	case o.Replicas < 0:
		return s, fmt.Errorf("pipeline: Options.Replicas is %d: set it to at least 1, or to 0 for 1", o.Replicas)
	case r.Replicas != nil:
		return s, errors.New("pipeline: Recipe.Replicas is set, which is for one program on several devices: " +
			"leave it nil, and set Options.Replicas")
	}
	if s, err = engine.Alone(r, o.Schedule.Micro); err != nil {
		return s, err
	}
	p, cut := s.Plans[0], o.Cut
	if cut == nil {
		if cut, err = Even(len(p.Blocks), len(o.Schedule.Blocks)); err != nil {
			return s, err
		}
	}
	if p, err = Spread(p, o.Schedule, cut); err != nil {
		return s, err
	}
	if o.Recompute {
		p = recompute.Stages(p)
	}
	s.Options = engine.Options{Apart: !o.Fused, Timeout: o.Timeout, Pace: o.pace(cut), Trace: o.Trace}
	return s.Checked(ddp.Average(p.Replicate(max(o.Replicas, 1), BetweenRanks), true, false))
}

// pace converts Options.Pace to blocks: each takes its part of its stage's time.
func (o Options) pace(cut []int) func(step.Op) time.Duration {
	if o.Pace == nil {
		return nil
	}
	var stages []int // by block
	for stage, n := range cut {
		for range n {
			stages = append(stages, stage)
		}
	}
	return func(op step.Op) time.Duration {
		if op.Kind == step.Update {
			return o.Pace(op)
		}
		op.Block = stages[op.Block]
		return o.Pace(op) / time.Duration(cut[op.Block])
	}
}
