// Package pipeline trains a model whose blocks are spread over ranks: each has one or more stages, runs of blocks, and
// micro-batches go from stage to stage and back. Who computes what in which order is a schedule: a plan of a step
// (lib/step) whose blocks are the stages. [NewSchedule] builds the published ones, [Search] looks for one, and any
// other may be written by hand.
//
// [Spread] turns a schedule and a model into what each rank does, block by block. [New] runs that with a device for
// each rank, and [Join] makes a process one rank of a group. What they return is a train.Trainer like any other.
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

// The names, in the trainer's Traffic, of what goes between ranks.
const (
	BetweenStages = engine.BetweenStages // activations and their gradients
	BetweenRanks  = "replica"            // gradients of replicas
)

// Options say how a model is trained in a pipeline.
type Options struct {
	// Schedule is what the ranks of one pipeline do in a step; its blocks are the stages. Its micro-batches are those
	// of a step. One that updates several times in a step ([Kind.Synchronous] is false) empties the pipeline at the end
	// of each step, so have it be of many micro-batches.
	Schedule *step.Plan
	// Cut is how many blocks of the model each stage has, in order; nil is [Even]. [Balance] finds one by the blocks'
	// costs.
	Cut []int
	// Replicas is how many pipelines train together, each with its part of the batch's rows (data parallelism); 0 is 1.
	// The first ranks of the group are the first pipeline, and so on.
	Replicas int
	// Recompute saves of each micro-batch only the input of a stage between the passes, and recomputes the stage before
	// its backward pass (Huang et al. 2019, "GPipe", §2.3). Otherwise what is costly to recompute is saved.
	Recompute bool
	// Fused has one program for a backward pass that the schedule does not split. It is somewhat faster than the two
	// programs of its parts, one after another, but is rounded otherwise. Without it all schedules on several ranks
	// have the same bits, but for parameters that several blocks or several ranks of a pipeline have, as all have in
	// DualPipe.
	Fused bool
	// Timeout is how long one pass of a block may take, and an update twice as long; 0 is group.DefaultTimeout, or in
	// one process an hour. A rank that takes longer fails the group, and the others learn by which operation.
	Timeout time.Duration
	// Pace, where it is not nil, has each pass of a stage take at least so long: simulated devices, whose passes
	// overlap on any number of cores. The block of the operation is the stage. An update is one of all the rank's
	// units, -1. Unless Fused, a backward pass that the schedule does not split is an InputGrad and a WeightGrad.
	Pace func(op step.Op) time.Duration
	// Trace, where it is not nil, gets a span for each operation, and counters of the bytes held of each kind.
	Trace *trace.Recorder
}

// Plan is what each rank does in a step of a recipe, block by block, and when. It needs no devices.
func (o Options) Plan(r train.Recipe) (*step.Plan, error) {
	s, err := o.spec(r)
	if err != nil {
		return nil, err
	}
	return s.Plans[0], nil
}

// New starts a run of a recipe in pipelines on the backend's first devices, one for each rank. The model is a chain of
// blocks (chain.Chained, as gpt.Config is); any other is one block, and so one stage. It is an error if there are more
// stages than blocks, if the cut does not fit, if there are too few devices, and if an asynchronous schedule comes with
// gradient clipping, loss scaling or parameters that several ranks have. The context is for starting; each call of the
// trainer has its own.
func New(ctx context.Context, backend *xla.Backend, r train.Recipe, o Options) (train.Trainer, error) {
	s, err := o.spec(r)
	if err != nil {
		return nil, err
	}
	return engine.Start(ctx, backend, s)
}

// Join makes this process's rank of a group, which runs on one of the backend's devices. The group has Options.Replicas
// times as many ranks as the schedule; those of a pipeline are neighbours. It is a collective call: all begin with rank
// 0's initial state.
func Join(ctx context.Context, g group.Group, backend *xla.Backend, device int, r train.Recipe, o Options) (
	train.Trainer, error) {
	s, err := o.spec(r)
	if err != nil {
		return nil, err
	}
	if n := len(s.Plans[0].Ranks); g.Size() != n {
		return nil, fmt.Errorf("pipeline: a group of %d ranks for %d pipelines of %d: make it %d",
			g.Size(), max(o.Replicas, 1), len(o.Schedule.Ranks), n)
	}
	return engine.Join(ctx, g, backend, device, s)
}

var errNoBackend = errors.New("pipeline: the backend is nil: open one with xla.Open")

// spec is a run of a recipe, as the engine has it.
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

// pace is Options.Pace for blocks: each takes its part of its stage's pass.
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
