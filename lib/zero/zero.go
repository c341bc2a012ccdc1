// Package zero trains with the Zero Redundancy Optimizer: data parallelism in which each rank stores only a shard of
// the training state (Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models").
// It shards
//
//   - the optimizer states and master weights, in stage 1,
//   - also the gradients, in stage 2,
//   - also the parameters, in stage 3, which PyTorch calls fully sharded data parallelism (FSDP).
//
// The model is a chain of blocks (package chain); any other model is a chain of one block. The parameters of a block
// form a unit; a parameter that several blocks share is a unit of its own. A unit is gathered, and its gradients are
// reduced, in one message. A rank's shard of a parameter is a range of its elements in row-major order, of equal length
// on all ranks and padded with zeros at the end (optim.FlatLength).
//
// [New] trains with a rank for each device, which gathers parameters while the passes run; [Join] makes a process one
// of the ranks, on any host; [NewSPMD] compiles one program for all devices, collectives included. They return a
// train.Trainer. [Shard] is the underlying rewrite of a step's plan. Stages 1 and 2 send as many bytes as an all-reduce
// of the gradients, stage 3 1.5 times as many.
//
// lib/zero/residual has ZeRO-R, the paper's other half.
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

// replicas is the axis between copies of the state; train.Axis joins the ranks that share one copy.
const replicas = "replica"

// Options configure ZeRO.
type Options struct {
	// Stage is 1, 2 or 3; each shards more than the one before.
	Stage int
	// Prefetch is, in stage 3, the number of passes by which a block's parameters are gathered early, and the maximal
	// number of reductions that run beside the passes. With 0 the rank waits for both.
	Prefetch int
	// Accumulate is the number of micro-batches per step (gradient accumulation); 0 means 1. Stage 1 accumulates full
	// gradients and reduces them once; stages 2 and 3 reduce those of each micro-batch.
	Accumulate int
	// Recompute saves only the input of each block and recomputes the block before its backward pass. Otherwise all
	// activations that are costly to recompute are saved.
	Recompute bool
	// Offload moves memory and work to the host: updates with the optimizer states and master weights (ZeRO-Offload;
	// Ren et al. 2021, "ZeRO-Offload: Democratizing Billion-Scale Model Training", §4.1), and the inputs of blocks,
	// which with Recompute are all that is saved between the passes. It needs a rank for each device.
	Offload offload.Host
	// Shards is the number of neighbouring ranks that share one copy of the state; 0 means all. With fewer, each group
	// of ranks has a copy, and ranks with equal positions in their groups average their gradients: hybrid sharding
	// (HSDP; Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", §3.2.2).
	Shards int
	// Timeout is the maximal time of a block's pass; an update may take twice as long. 0 means group.DefaultTimeout, or
	// an hour if all ranks are in one process. If a rank takes longer, training fails on all ranks with an error that
	// names the operation.
	Timeout time.Duration
	// Trace, if not nil, records a span for each operation, and counters of memory by kind.
	Trace *trace.Recorder
}

// Validate returns an error that names the invalid option, its value and what to do.
func (o Options) Validate() error {
	switch {
	case o.Stage < 1 || o.Stage > 3:
		return fmt.Errorf("zero: Options.Stage is %d: set it to 1, 2 or 3; what shards nothing is lib/ddp", o.Stage)
	case o.Prefetch < 0:
		return fmt.Errorf("zero: Options.Prefetch is %d: set it to a number of passes, at least 0", o.Prefetch)
	case o.Prefetch > 0 && o.Stage < 3:
		return fmt.Errorf("zero: Options.Prefetch is %d in stage %d, which gathers no parameters for passes: set it "+
			"to 0", o.Prefetch, o.Stage)
	case o.Accumulate < 0:
		return fmt.Errorf("zero: Options.Accumulate is %d: set it to at least 1, or to 0 for 1", o.Accumulate)
	case o.Shards < 0:
		return fmt.Errorf("zero: Options.Shards is %d: set it to at least 1, or to 0 for all ranks", o.Shards)
	}
	return o.Offload.Validate()
}

// Plan returns what each rank does in a training step. It needs no devices.
func (o Options) Plan(r train.Recipe, ranks int) (*step.Plan, error) {
	s, err := o.spec(r, ranks, false)
	if err != nil {
		return nil, err
	}
	return s.Plans[0], nil
}

// Sizes returns the sizes of the plan's units in bytes, padding included, for [step.Plan.Memory] and
// [step.Plan.Traffic]. States include the master weights. It needs no devices.
func (o Options) Sizes(r train.Recipe, ranks int) (step.Sizes, error) {
	s, err := o.spec(r, ranks, false)
	if err != nil {
		return step.Sizes{}, err
	}
	return engine.Sizes(s)
}

// Bytes returns the memory of each rank without activations, by kind, in bytes, padding included: memest.Parameters, in
// the compute type; memest.Master, if they are stored in another type; memest.Optimizer; memest.Gradients, from the
// first micro-batch to the update. Full parameters and gradients that exist for a moment are not counted. It needs no
// devices.
func (o Options) Bytes(r train.Recipe, ranks int) (map[memest.Kind]int64, error) {
	s, err := o.spec(r, ranks, false)
	if err != nil {
		return nil, err
	}
	return engine.Bytes(s, 0)
}

// New starts training on the backend's first devices, with a rank for each. It returns an error if the backend has
// fewer devices, or if Options.Shards does not divide them. The context is for starting; each call of the trainer has
// its own.
func New(ctx context.Context, backend *xla.Backend, r train.Recipe, devices int, o Options) (train.Trainer, error) {
	return o.start(ctx, backend, r, devices, false)
}

// NewSPMD is [New] with one program per step for all devices that share a copy of the state, which XLA schedules. The
// trainer's Memory has what a device holds between steps and, as memest.Temporary, what the program needs while it
// runs, including gradients and gathered parameters.
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

// Join makes this process one rank of a group, on one of the backend's devices. It is a collective call: all ranks
// start with rank 0's initial state.
func Join(ctx context.Context, g group.Group, backend *xla.Backend, device int, r train.Recipe,
	o Options) (train.Trainer, error) {
	s, err := o.spec(r, g.Size(), false)
	if err != nil {
		return nil, err
	}
	return engine.Join(ctx, g, backend, device, s)
}

// spec returns the engine's description of a run. Inside means SPMD: a rank drives all devices that share a copy of the
// state.
func (o Options) spec(r train.Recipe, devices int, inside bool) (s engine.Spec, err error) {
	if err := o.Validate(); err != nil {
		return s, err
	}
	shards := cmp.Or(o.Shards, devices)
	switch {
	case devices < 1:
		return s, fmt.Errorf("zero: %d ranks: give at least 1", devices)
	case devices%shards != 0:
		return s, fmt.Errorf("zero: Options.Shards is %d, which does not divide the %d ranks: choose a divisor, or 0 "+
			"for all", o.Shards, devices)
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
			pending = 1 // a block's gradients are reduced while the next ones are computed
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
