// Package parallel composes the techniques that spread the training of one model over many devices: data, pipeline,
// tensor and sequence parallelism, ZeRO and recomputation, in one [Layout].
//
// It turns a layout into a plan of a step (lib/step): it starts with the plan of one device, distributes the blocks to
// the ranks of a pipeline (lib/pipeline), recomputes forward passes (lib/recompute), replicates the ranks, and shards
// units (lib/zero) or reduces their gradients (lib/ddp). [New] runs it on the devices of this process; [Plan.Join]
// makes a process one rank of a group, also between hosts (lib/collective/mpi).
//
// Each rank drives the devices of a mesh with programs of its own, in which the devices communicate by lib/collective:
// data parallelism (the axis "data"), tensor parallelism ("tensor") and sequence parallelism ("ring", "ulysses"). Ranks
// exchange activations between stages and gradients between replicas by a group.Group.
//
// Any train.Model can be trained. To be cut into stages it must be a chain of blocks (package chain); for tensor and
// sequence parallelism it must say how devices shard it (train.Shared), as gpt.Parallel does.
package parallel

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/shardbook/shardbook/internal/engine"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// Options are settings of a run that are not part of its layout.
type Options struct {
	// Timeout is the maximum time of a pass, and half that of an update; it defaults to group.DefaultTimeout, or to an
	// hour in one process. A slower rank fails the group, with an error that names the operation.
	Timeout time.Duration
	// Trace, if not nil, records a span for each operation, and counters of the bytes held of each kind.
	Trace *trace.Recorder
	// Link, if not zero, simulates a slow link between ranks (group.Slow).
	Link group.Link
	// Apart also runs unsplit backward passes as two parts, for input and weight gradients, so that all schedules of a
	// pipeline give identical bits. It is somewhat slower.
	Apart bool
	// Staged copies data between ranks through host memory, as networks without direct access to device memory do.
	Staged bool
}

// Plan is a recipe in a layout: what each rank holds and does. It needs no devices.
type Plan struct {
	layout Layout
	spec   engine.Spec
}

// NewPlan returns the plan of a recipe in a layout. It is an error if either is invalid, or if they do not fit each
// other.
func NewPlan(r train.Recipe, l Layout) (*Plan, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	l = l.withDefaults()
	s, err := engine.Alone(r, l.Microbatches)
	if err != nil {
		return nil, err
	}
	shards, err := l.share(r.Model)
	if err != nil {
		return nil, err
	}
	plans, members, cut, err := l.compose(s.Recipe, s.Plans[0], s.Members, shards)
	if err != nil {
		return nil, err
	}
	l.Cut, s.Members, s.Shards, s.Mesh, s.Hook, s.Sum = cut, members, shards, l.axes(), l.Hook, l.SumLoss
	if l.RingRanks {
		s.Ring = Ring
	}
	if l.expertRanks() > 1 {
		s.Between = []string{Expert}
	}
	if s, err = s.Checked(plans...); err != nil {
		return nil, err
	}
	return &Plan{l, s}, nil
}

// share returns how the model is sharded over the devices of a rank.
func (l Layout) share(model train.Model) (shards params.Shards, err error) {
	sizes := map[string]int{}
	for _, axis := range l.axes() {
		sizes[axis.Name] = axis.Size
	}
	sizes[Ring], sizes[Expert] = l.Ring, l.Expert
	shared, ok := model.(train.Shared)
	if !ok {
		if l.PerRank() > l.Data || l.Ring > 1 || l.Expert > 1 {
			return shards, fmt.Errorf("parallel: a %T does not say how devices shard it, and the layout has "+
				"tensor=%d, ring=%d, ulysses=%d, expert=%d: give a model that does (train.Shared), as gpt.Parallel, or "+
				"leave these at 1", model, l.Tensor, l.Ring, l.Ulysses, l.Expert)
		}
		return shards, nil
	}
	shards, err = shared.Shards(func(axis string) (int, error) {
		if n, ok := sizes[axis]; ok {
			return n, nil
		}
		return 0, fmt.Errorf("parallel: the model shards along the axis %q, and a layout has %q, %q, %q and %q: use "+
			"Layout.TensorGroup, SequenceGroup and Experts", axis, Ring, Ulysses, Tensor, Expert)
	})
	if err != nil {
		return shards, err
	}
	for _, axis := range l.axes()[1:] {
		if n := sizes[axis.Name]; n > 1 && axis.Name != shards.Axis && axis.Name != shards.Experts &&
			!slices.Contains(shards.Tokens, axis.Name) {
			return shards, fmt.Errorf("parallel: the layout has %s=%d, and the model shards nothing along it: use "+
				"Layout.TensorGroup, SequenceGroup and Experts", axis.Name, n)
		}
	}
	if l.Expert > 1 && shards.Experts != Expert {
		return shards, fmt.Errorf("parallel: the layout has expert=%d, and the model has no experts along %q: use "+
			"Layout.Experts", l.Expert, Expert)
	}
	if l.RingRanks { // whose ring shards nothing on a rank's devices
		between := func(axis string) bool { return axis == Ring }
		shards.Tokens = slices.DeleteFunc(slices.Clone(shards.Tokens), between)
		shards.Between = slices.DeleteFunc(slices.Clone(shards.Between), between)
	}
	if shards.Cuts != nil { // in the order in which the chain lists parameters
		chained, err := chain.Of(model)
		if err != nil {
			return shards, err
		}
		tree, cuts := model.Params(), shards.Cuts
		shards.Cuts = nil
		for _, s := range chained.Params() {
			shards.Cuts = append(shards.Cuts, cuts[tree.Index(s.Name)])
		}
	}
	if l.Tensor == 1 {
		if shards.Axis = ""; l.Expert == 1 {
			shards.Cuts = nil
		}
	}
	return shards, nil
}

// Layout returns the plan's layout, with defaults filled in.
func (p *Plan) Layout() Layout { return p.layout }

// Step returns the plan of a step: what each rank does, in order. With local SGD it is the step that ends with an
// average.
func (p *Plan) Step() *step.Plan { return p.spec.Plans[len(p.spec.Plans)-1] }

// Schedule returns the order of the passes in one pipeline.
func (p *Plan) Schedule() (*step.Plan, error) { return p.layout.schedule() }

// Bytes returns the bytes that each device of a rank holds besides activations, by kind: memest.Parameters, which the
// passes use; memest.Master, if these differ in type from the stored ones; memest.Optimizer; and memest.Gradients, from
// the first micro-batch to the update. Loss scale and counters, a few bytes, are not counted. It is an error if the
// layout does not have the rank.
func (p *Plan) Bytes(rank int) (map[memest.Kind]int64, error) {
	if rank < 0 || rank >= p.layout.Ranks() {
		return nil, fmt.Errorf("parallel: rank %d of %d: count from 0", rank, p.layout.Ranks())
	}
	return engine.Bytes(p.spec, rank)
}

// Sizes returns the bytes of the units of [Plan.Step] on a device, padding included, for [step.Plan.Memory] and
// [step.Plan.Traffic]. States include the master weights.
func (p *Plan) Sizes() (step.Sizes, error) { return engine.Sizes(p.spec) }

// Start starts a run of the plan on the first [Layout.Devices] devices of the backend. It is an error if there are
// fewer. Its ranks share compiled programs. The context is only for starting; each call of the trainer has its own.
func (p *Plan) Start(ctx context.Context, backend *xla.Backend, o Options) (train.Trainer, error) {
	return engine.Start(ctx, backend, p.with(o))
}

// New starts a run of a recipe in a layout on the backend's first devices: [NewPlan], then [Plan.Start].
func New(ctx context.Context, backend *xla.Backend, recipe train.Recipe, l Layout, o Options) (train.Trainer, error) {
	p, err := NewPlan(recipe, l)
	if err != nil {
		return nil, err
	}
	return p.Start(ctx, backend, o)
}

// Join starts this process's rank of a group, on [Layout.PerRank] of the backend's devices, beginning with device
// number first. The group has [Layout.Ranks] ranks; those of a pipeline are neighbours. It is a collective call: all
// ranks start with rank 0's initial state.
func (p *Plan) Join(ctx context.Context, g group.Group, backend *xla.Backend, first int,
	o Options) (train.Trainer, error) {
	if g.Size() != p.layout.Ranks() {
		return nil, fmt.Errorf("parallel: a group of %d ranks for a layout of %d: make it %d", g.Size(),
			p.layout.Ranks(), p.layout.Ranks())
	}
	return engine.Join(ctx, g, backend, first, p.with(o))
}

func (p *Plan) with(o Options) engine.Spec {
	s := p.spec
	s.Timeout, s.Trace, s.Link, s.Apart, s.Staged = o.Timeout, o.Trace, o.Link, o.Apart, o.Staged
	return s
}
