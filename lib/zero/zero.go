// Package zero is data parallelism that does not hold everything everywhere: the Zero Redundancy Optimizer (Rajbhandari
// et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models"). Ranks train on parts of every
// batch, but each keeps only its shard
//
//   - of the optimizer's states and the master copy of parameters, in stage 1,
//   - of the gradients as well, in stage 2,
//   - of the parameters as well, in stage 3, which PyTorch calls fully sharded data parallelism (FSDP).
//
// A model is a chain of blocks (package chain), any other a chain of one. The parameters of a block form a unit, and
// what several blocks have in common forms a unit of its own: units are gathered, and their gradients reduced, in one
// message. A rank's shard of a parameter is a run of its elements in row-major order, as many for each rank; the last
// ranks' are padded with zeros (optim.FlatLength).
//
// [Shard] writes ZeRO into the plan of a step. [New] carries that out on ranks with a device each, which gather
// parameters beside the passes; [Join] makes a process one of them, on whatever host. [NewSPMD] has one program for a
// step on all devices, with the collectives in it. What they return is a train.Trainer like any other. Stages 1 and 2
// send as many bytes as an all-reduce of the gradients, stage 3 half as many again.
//
// lib/zero/residual has what the paper calls ZeRO-R.
package zero

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/shardbook/shardbook/internal/engine"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/offload"
	"github.com/shardbook/shardbook/lib/recompute"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// The axes of a plan, and the names in the trainer's Traffic. Between those that share one copy of the state it is
// train.Axis, between copies Replicas.
const replicas = "replica"

// Options say what is sharded, and how.
type Options struct {
	// Stage is 1, 2 or 3: each shards what the ones before it do, and more.
	Stage int
	// Prefetch is how many passes ahead of its use a block's parameters are gathered, in stage 3, and how many
	// reductions of gradients may be under way beside the passes. With 0 the rank waits for both.
	Prefetch int
	// Accumulate is into how many micro-batches, one after another, a rank's rows of a batch are divided; 0 is 1. Stage
	// 1 adds up full gradients and reduces them once; stages 2 and 3 reduce those of each micro-batch.
	Accumulate int
	// Recompute saves of each block only its input between the passes, and recomputes the block before its backward
	// pass. Otherwise what is costly to recompute is saved.
	Recompute bool
	// Offload is what lies in the host's memory, or is done there: updates, with the optimizer's states and the master
	// copy (ZeRO-Offload; Ren et al. 2021, "ZeRO-Offload: Democratizing Billion-Scale Model Training", §4.1), and the
	// inputs of blocks, which with Recompute are all that is kept between the passes. It is for a rank for each device.
	Offload offload.Host
	// Shards is how many neighbouring ranks share one copy of the state; 0 is all. With fewer there are several copies,
	// each in a sharding group, whose ranks of equal place average their gradients: hybrid sharding (HSDP; Zhao et al.
	// 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", §3.2.2).
	Shards int
	// Timeout is how long one pass of a block may take, and an update twice as long; 0 is group.DefaultTimeout, or in
	// one process an hour. A rank that takes longer fails the group, and the others learn by which operation.
	Timeout time.Duration
	// Trace, where it is not nil, gets a span for each operation, and counters of the bytes held of each kind.
	Trace *trace.Recorder
}

// Validate returns an error that says what is not valid, with its value and what to do.
func (o Options) Validate() error {
	switch {
	case o.Stage < 1 || o.Stage > 3:
		return fmt.Errorf("zero: Options.Stage is %d: set it to 1, 2 or 3; what shards nothing is lib/ddp", o.Stage)
	case o.Prefetch < 0:
		return fmt.Errorf("zero: Options.Prefetch is %d: set it to a number of passes, at least 0", o.Prefetch)
	case o.Prefetch > 0 && o.Stage < 3:
		return fmt.Errorf("zero: Options.Prefetch is %d in stage %d, whose parameters are there already: leave it 0",
			o.Prefetch, o.Stage)
	case o.Accumulate < 0:
		return fmt.Errorf("zero: Options.Accumulate is %d: set it to at least 1, or to 0 for 1", o.Accumulate)
	case o.Shards < 0:
		return fmt.Errorf("zero: Options.Shards is %d: set it to at least 1, or to 0 for all ranks", o.Shards)
	}
	return o.Offload.Validate()
}

// Plan is what each of so many ranks does in a step of a recipe, and when. It needs no devices.
func (o Options) Plan(r train.Recipe, ranks int) (*step.Plan, error) {
	s, err := o.spec(r, ranks, false)
	if err != nil {
		return nil, err
	}
	return s.Plans[0], nil
}

// Sizes are those of the plan's units in bytes, padding included, for [step.Plan.Memory] and [step.Plan.Traffic].
// States have the master copy of the parameters with them. It needs no devices.
func (o Options) Sizes(r train.Recipe, ranks int) (step.Sizes, error) {
	s, err := o.spec(r, ranks, false)
	if err != nil {
		return step.Sizes{}, err
	}
	return engine.Sizes(s)
}

// Bytes is what each rank holds besides activations, by kind, in bytes, padding included: memest.Parameters, in the
// type to compute in; memest.Master where that is not the type that they are kept in; memest.Optimizer; and
// memest.Gradients, from the first micro-batch to the update. What is full for a moment only is not in it. It needs no
// devices.
func (o Options) Bytes(r train.Recipe, ranks int) (map[memest.Kind]int64, error) {
	s, err := o.spec(r, ranks, false)
	if err != nil {
		return nil, err
	}
	return engine.Bytes(s, 0)
}

// New starts a run of a recipe on the backend's first devices, so many, with a rank for each. Too few devices are an
// error, and so is a number that Options.Shards does not divide. The context is for starting; each call of the trainer
// has its own.
func New(ctx context.Context, backend *xla.Backend, r train.Recipe, devices int, o Options) (train.Trainer, error) {
	return o.start(ctx, backend, r, devices, false)
}

// NewSPMD is [New] with one program for a step on all devices that share a copy of the state, which XLA schedules as a
// whole. The trainer's Memory has what lies on a device between steps, and as memest.Temporary what the program needs
// while it runs, gradients and gathered parameters among it.
func NewSPMD(ctx context.Context, backend *xla.Backend, r train.Recipe, devices int, o Options) (train.Trainer, error) {
	return o.start(ctx, backend, r, devices, true)
}

func (o Options) start(ctx context.Context, backend *xla.Backend, r train.Recipe, devices int,
	inside bool) (train.Trainer, error) {
	s, err := o.spec(r, devices, inside)
	if err != nil {
		return nil, err
	}
	return engine.Start(ctx, backend, s)
}

// Join makes this process's rank of a group, which runs on one of the backend's devices. It is a collective call: all
// begin with rank 0's initial state.
func Join(ctx context.Context, g group.Group, backend *xla.Backend, device int, r train.Recipe,
	o Options) (train.Trainer, error) {
	s, err := o.spec(r, g.Size(), false)
	if err != nil {
		return nil, err
	}
	return engine.Join(ctx, g, backend, device, s)
}

// spec is a run of a recipe on devices, as the engine has it. Inside, a rank drives all devices that share a copy of
// the state.
func (o Options) spec(r train.Recipe, devices int, inside bool) (s engine.Spec, err error) {
	if err := o.Validate(); err != nil {
		return s, err
	}
	shards := cmp.Or(o.Shards, devices)
	switch {
	case devices < 1:
		return s, fmt.Errorf("zero: %d ranks: give at least 1", devices)
	case devices%shards != 0:
		return s, fmt.Errorf("zero: Options.Shards is %d, which does not divide the %d ranks: choose a divisor, or 0 for all",
			o.Shards, devices)
	}
	if s, err = engine.Alone(r, max(o.Accumulate, 1)); err != nil {
		return s, err
	}
	p := s.Plans[0]
	if o.Recompute {
		p = recompute.Blocks(p)
	}
	pending := o.Prefetch
	switch {
	case !inside:
		if p = p.Replicate(shards, train.Axis); o.Stage == 2 {
			pending = 1 // a block's gradients are reduced while those of the next are computed
		}
	case shards > 1:
		p.Inside(train.Axis, shards)
		for u := range p.Units {
			p.Units[u].Reduce = []string{train.Axis}
		}
		s.Mesh = []xla.MeshAxis{xla.Axis(train.Axis, shards)}
	}
	p = Shard(p.Replicate(devices/shards, replicas), o.Stage, o.Prefetch, pending, train.Axis)
	s.Timeout, s.Trace = o.Timeout, o.Trace
	return s.Checked(o.Offload.Into(p, r))
}
