// Package parallel composes the techniques that spread the training of one model over many devices: data, pipeline,
// tensor and sequence parallelism, ZeRO, recomputation, in one [Layout].
//
// A layout is turned into a plan of a step (lib/step): the plan of one device, its blocks dealt to the ranks of a
// pipeline (lib/pipeline), its forward passes recomputed (lib/recompute), its ranks copied, its units sharded
// (lib/zero) or their gradients reduced (lib/ddp). [New] runs it on the devices of this process, and [Plan.Join] makes
// a process one rank of a group, which may go from host to host (lib/collective/mpi).
//
// Each rank drives the devices of a mesh by programs of its own, in which its devices communicate by lib/collective:
// data parallelism (the axis "data"), tensor parallelism ("tensor") and sequence parallelism ("ring", "ulysses"). What
// lies between ranks, activations from stage to stage and the gradients of replicas, goes by a group.Group.
//
// Any train.Model can be trained; to be cut into stages it must be a chain of blocks (package chain). For tensor
// and sequence parallelism it must say what each device has (train.Shared), as gpt.Parallel does.
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

// Options say how a layout is run.
type Options struct {
	// Timeout is how long one pass may take, and an update twice as long; 0 is group.DefaultTimeout, or in one process
	// an hour. A rank that takes longer fails the group, and the others learn by which operation.
	Timeout time.Duration
	// Trace, where it is not nil, gets a span for each operation, and counters of the bytes held of each kind.
	Trace *trace.Recorder
	// Link, where it is not the zero value, has what goes between ranks take at least as long as over it (group.Slow): a
	// simulated slow link.
	Link group.Link
	// Apart runs a backward pass that the schedule does not split as its two parts, so that all schedules of a pipeline
	// have the same bits. It is somewhat slower.
	Apart bool
	// Staged copies what goes between ranks through the host's own memory, as is done where it cannot reach the devices'.
	Staged bool
}

// Plan is a recipe in a layout: what each rank has, and what it does when. It needs no devices.
type Plan struct {
	layout Layout
	spec   engine.Spec
}

// NewPlan puts a recipe into a layout. It is an error if the layout or the recipe is not valid, or if they do not fit
// each other.
func NewPlan(r train.Recipe, l Layout) (*Plan, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	l = l.withDefaults()
	s, err := engine.Alone(r, l.Microbatches)
	if err != nil {
		return nil, err
	}
	shares, err := l.share(r.Model)
	if err != nil {
		return nil, err
	}
	plans, members, cut, err := l.compose(s.Recipe, s.Plans[0], s.Members, shares.Tokens)
	if err != nil {
		return nil, err
	}
	l.Cut, s.Members, s.Shares, s.Mesh, s.Hook, s.Sum = cut, members, shares, l.axes(), l.Hook, l.SumLoss
	if l.RingRanks {
		s.Ring = Ring
	}
	if s, err = s.Checked(plans...); err != nil {
		return nil, err
	}
	return &Plan{l, s}, nil
}

// share asks the model what devices shard.
func (l Layout) share(model train.Model) (shares params.Shares, err error) {
	sizes := map[string]int{}
	for _, axis := range l.axes() {
		sizes[axis.Name] = axis.Size
	}
	sizes[Ring] = l.Ring
	shared, ok := model.(train.Shared)
	if !ok {
		if l.PerRank() > l.Data || l.Ring > 1 {
			return shares, fmt.Errorf("parallel: a %T does not say what devices share, and the layout has tensor=%d, "+
				"ring=%d, ulysses=%d: "+
				"give a model that does (train.Shared), as gpt.Parallel, or leave these at "+
				"1", model, l.Tensor, l.Ring, l.Ulysses)
		}
		return shares, nil
	}
	shares, err = shared.Shares(func(axis string) (int, error) {
		if n, ok := sizes[axis]; ok {
			return n, nil
		}
		return 0, fmt.Errorf("parallel: the model shares along the axis %q, and a layout has %q, %q and %q: use "+
			"Layout.TensorGroup and "+
			"SequenceGroup", axis, Ring, Ulysses, Tensor)
	})
	if err != nil {
		return shares, err
	}
	for _, axis := range l.axes()[1:] {
		if n := sizes[axis.Name]; n > 1 && axis.Name != shares.Axis && !slices.Contains(shares.Tokens, axis.Name) {
			return shares, fmt.Errorf("parallel: the layout has %s=%d, and the model shares nothing along it: use "+
				"Layout.TensorGroup and SequenceGroup", axis.Name, n)
		}
	}
	if l.RingRanks { // along which a rank's devices share nothing
		between := func(axis string) bool { return axis == Ring }
		shares.Tokens = slices.DeleteFunc(slices.Clone(shares.Tokens), between)
		shares.Between = slices.DeleteFunc(slices.Clone(shares.Between), between)
	}
	if shares.Cuts != nil { // in the order in which the chain lists parameters
		chained, err := chain.Of(model)
		if err != nil {
			return shares, err
		}
		tree, cuts := model.Params(), shares.Cuts
		shares.Cuts = nil
		for _, s := range chained.Params() {
			shares.Cuts = append(shares.Cuts, cuts[tree.Index(s.Name)])
		}
	}
	if l.Tensor == 1 {
		shares.Cuts, shares.Axis = nil, ""
	}
	return shares, nil
}

// Layout is the plan's layout, with the numbers that were left at 0.
func (p *Plan) Layout() Layout { return p.layout }

// Step is what each rank does in a step, and when; in local SGD in one that ends with an average.
func (p *Plan) Step() *step.Plan { return p.spec.Plans[len(p.spec.Plans)-1] }

// Schedule is the order of the passes in one pipeline.
func (p *Plan) Schedule() (*step.Plan, error) { return p.layout.schedule() }

// Bytes is what each device of a rank holds besides activations, by kind, in bytes: memest.Parameters, which the passes
// use; memest.Master where these are of another type than the stored ones; memest.Optimizer; and memest.Gradients,
// from the first micro-batch to the update. Loss scale and counters, a few bytes, are not counted. A rank that the
// layout does not have is an error.
func (p *Plan) Bytes(rank int) (map[memest.Kind]int64, error) {
	if rank < 0 || rank >= p.layout.Ranks() {
		return nil, fmt.Errorf("parallel: rank %d of %d: count from 0", rank, p.layout.Ranks())
	}
	return engine.Bytes(p.spec, rank)
}

// Sizes are those of the units of [Plan.Step] in bytes, padding included, as a device has them, for [step.Plan.Memory]
// and [step.Plan.Traffic]. States have the master copy of the parameters with them.
func (p *Plan) Sizes() (step.Sizes, error) { return engine.Sizes(p.spec) }

// Start starts a run of the plan on the backend's first devices, [Layout.Devices] of them; too few are an error. Its
// ranks share compiled programs. The context is for starting; each call of the trainer has its own.
func (p *Plan) Start(ctx context.Context, backend *xla.Backend, o Options) (train.Trainer, error) {
	return engine.Start(ctx, backend, p.with(o))
}

// New starts a run of a recipe in a layout on the backend's first devices. A layout that needs more is an error, and so
// is what [NewPlan] refuses. It is [NewPlan] and [Plan.Start].
func New(ctx context.Context, backend *xla.Backend, recipe train.Recipe, l Layout, o Options) (train.Trainer, error) {
	p, err := NewPlan(recipe, l)
	if err != nil {
		return nil, err
	}
	return p.Start(ctx, backend, o)
}

// Join makes this process's rank of a group, which drives as many of the backend's devices as [Layout.PerRank] says,
// from number first on. The group has [Layout.Ranks] ranks; those of a pipeline are neighbours. It is a collective
// call: all begin with rank 0's initial state.
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
