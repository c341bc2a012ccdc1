package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/train"
)

// Rank is one of the ranks that train together. It is not safe for use by several goroutines at once.
//
// A step that fails leaves the rank lost, and all others: what is asked of it after is an error. The error says which
// rank failed, and in which operation. Go on in a new group, from the last checkpoint: batches are functions of the
// step's number, so none is lost and none comes twice.
type Rank struct {
	*devices
	own    *own
	world  group.Group
	groups map[string]group.Group // by axis of the plans
	place_ int                    // among those that share the state
	hook   Hook
	server Server        // it, where that updates
	served *atomic.Int64 // bytes that it has given to the group, and no step has counted

	arrays *arrays
	host   *host
	cells  []*dtensor.Tensor
	values map[step.Value][]*dtensor.Tensor
	grads  map[int]*grads            // by unit
	old    map[int][]*dtensor.Tensor // by version: parameters before the newest, for micro-batches under way

	prepared     []*prepared // by plan, for
	evaluation   *prepared
	inputs       shapes.Shape // micro-batches of these shapes
	targets      shapes.Shape
	sizes        *sizes
	traffic      *traffic
	communicated int64 // bytes, in all steps
	steps        int
	lost         error
	alone        bool // it closes the programs
}

// grads are the sums of a unit's gradients, the rank's own and those over ranks; who reduces has both meanwhile. Behind
// them there is the shard of new parameters, until it is gathered.
type grads struct{ sum, reduced, fresh *dtensor.Tensor }

// Join makes this process's rank of a group, which drives the backend's devices from number first on. The group has as
// many ranks as the plans. It is a collective call: all begin with rank 0's initial state.
func (p *Programs) Join(ctx context.Context, g group.Group, first int) (*Rank, error) {
	if g.Size() != len(p.ranks) {
		return nil, fmt.Errorf("engine: a group of %d ranks for a plan of %d: make them equal", g.Size(), len(p.ranks))
	}
	mesh, err := p.backend.MeshFrom(first, p.Mesh...)
	if err != nil {
		return nil, err
	}
	if p.Link != (group.Link{}) {
		if g, err = group.Slow(g, p.Link); err != nil {
			return nil, err
		}
	}
	r := &Rank{devices: &devices{p, mesh, first}, own: p.ranks[g.Rank()], world: g, groups: map[string]group.Group{},
		values: map[step.Value][]*dtensor.Tensor{}, grads: map[int]*grads{},
		old: map[int][]*dtensor.Tensor{}}
	r.arrays = newArrays(r.devices, p.Trace, g.Rank())
	r.host = &host{own: r.own, arrays: r.arrays, held: map[slot]*tensors.Tensor{}}
	if p.Hook != nil {
		r.hook = p.Hook()
	}
	if p.Serve != nil {
		r.server = p.Serve()
		r.hook, r.served = r.server, &atomic.Int64{}
	}
	for _, a := range p.Plans[0].Axes {
		if err := r.split(ctx, a); err != nil {
			return nil, err
		}
	}
	if s := r.groups[p.axis]; s != nil {
		r.place_ = s.Rank()
	}
	values, err := p.Recipe.Initial()
	if err != nil {
		return nil, err
	}
	if g.Size() > 1 {
		if err := fromFirst(ctx, g, values); err != nil {
			return nil, err
		}
	}
	if err := r.begin(ctx, p.Recipe.State(), values); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// begin takes a state, whole and on the host, in place of the one that is there. The tree lists it: all of the rank's,
// or of a server all.
func (r *Rank) begin(ctx context.Context, tree params.Tree, values []*tensors.Tensor) error {
	var own []*tensors.Tensor
	for _, e := range r.own.entries {
		own = append(own, values[tree.Index(e.spec.Name)])
	}
	if err := r.replace(own); err != nil || r.server == nil {
		return err
	}
	return r.server.Begin(ctx, counted{r.world, r.served}, r.first, values)
}

// Server is what updates in the rank's place, or nil.
func (r *Rank) Server() Server { return r.server }

// split makes the groups of an axis.
func (r *Rank) split(ctx context.Context, a step.Axis) error {
	if len(a.Groups) == 0 {
		return nil
	}
	at := slices.IndexFunc(a.Groups, func(g []int) bool { return slices.Contains(g, r.world.Rank()) })
	g, err := r.world, error(nil)
	if len(a.Groups[0]) < r.world.Size() {
		g, err = r.world.Split(ctx, at, slices.Index(a.Group(r.world.Rank()), r.world.Rank()))
	}
	if at >= 0 {
		r.groups[a.Name] = g
	}
	return err
}

// fromFirst gives all ranks rank 0's values of tensors of the host.
func fromFirst(ctx context.Context, g group.Group, values []*tensors.Tensor) error {
	for _, v := range values {
		var own error
		err := v.MutableBytes(func(data []byte) { own = group.Broadcast(ctx, g, data, 0) })
		if err := errors.Join(err, own); err != nil {
			return err
		}
	}
	return nil
}

// Step trains on one batch, inputs and targets of shape (B,…): the same on all ranks. Its rows are divided by the ranks
// with other rows, the micro-batches, and the devices with other rows; a B that cannot be is an error. The loss is the
// mean over the whole batch. It is a collective call.
func (r *Rank) Step(ctx context.Context, inputs, targets *tensors.Tensor) (train.Metrics, error) {
	if r.lost != nil {
		return train.Metrics{}, r.lost
	}
	if err := train.CheckBatch(r.model, inputs, targets); err != nil {
		return train.Metrics{}, err
	}
	parts, err := r.parts(inputs, targets)
	if err != nil {
		return train.Metrics{}, err
	}
	if err := r.prepare(parts[0]); err != nil {
		return train.Metrics{}, err
	}
	m, err := r.step(ctx, r.prepared[r.steps%len(r.Plans)], parts)
	if err != nil {
		return train.Metrics{}, r.lose(fmt.Errorf("step %d: %w", r.steps, err))
	}
	r.steps++
	if r.server != nil {
		r.traffic.sent[r.Plans[0].Axes[0].Name] = r.served.Swap(0)
	}
	for axis, n := range r.traffic.sent {
		if axis != step.ToHost {
			r.communicated += n
		}
	}
	r.Trace.Count(r.world.Rank(), "bytes communicated", r.communicated)
	return m, nil
}

// parts are the rank's micro-batches of a batch, whose rows the rank's devices divide further.
func (r *Rank) parts(inputs, targets *tensors.Tensor) ([]microBatch, error) {
	copies, at := r.own.copies()
	copies, at = copies/r.own.ring, at/r.own.ring
	micro, devices := r.Plans[0].Micro, copies*r.Mesh[0].Size
	if inputs != nil && inputs.Rank() > 0 && inputs.Shape().Dim(0)%(devices*micro) != 0 {
		return nil, fmt.Errorf("engine: a batch of %d rows for %d devices with other rows and %d micro-batches each: "+
			"make it a multiple of %d",
			inputs.Shape().Dim(0), devices, micro, devices*micro)
	}
	return microBatches(inputs, targets, at, copies, micro)
}

// Memory is the most bytes of each kind that a device of the rank has held at once in the last step, and
// memest.Temporary, what the program needs besides that needs most.
func (r *Rank) Memory() map[memest.Kind]int64 {
	kinds := r.arrays.peaks()
	if n := r.traffic.temporary(); n > 0 {
		kinds[memest.Temporary] = n
	}
	return kinds
}

// Plan is that of the next step.
func (r *Rank) Plan() *step.Plan { return r.shown[r.steps%len(r.shown)] }

// Steps is the number of batches trained on, and so the number of the next one, from 0.
func (r *Rank) Steps() int { return r.steps }

// Params returns copies of the parameters that the rank has, whole, by name and in the type that they are kept in. It
// is a collective call where ranks have shards.
func (r *Rank) Params(ctx context.Context) (params.Named[*tensors.Tensor], error) {
	if r.lost != nil {
		return nil, r.lost
	}
	all := params.Named[*tensors.Tensor]{}
	for i, s := range r.own.whole {
		t, err := r.entry(ctx, i)
		if err != nil {
			return nil, r.orLose(err)
		}
		all[s.Name] = t
	}
	return all, nil
}

// lose remembers what the rank was lost by.
func (r *Rank) lose(by error) error {
	err := fmt.Errorf("rank %d is lost: join a new group and load the last checkpoint; it was lost by: %w",
		r.world.Rank(), by)
	r.lost = err
	return errors.Join(err, r.Close())
}

// orLose loses the rank by an error of the group, after which its ranks cannot go on.
func (r *Rank) orLose(err error) error {
	var failure *group.Failure
	if errors.As(err, &failure) {
		return r.lose(err)
	}
	return err
}

// Close frees what the rank has, and waits for nobody but a server.
func (r *Rank) Close() error {
	var err error
	if r.server != nil {
		err = r.server.Close(r.lost)
	}
	if r.lost == nil {
		r.lost = errors.New("the rank is closed: join again")
	}
	clear(r.values)
	clear(r.grads)
	clear(r.host.held)
	r.cells = nil
	err = errors.Join(err, r.arrays.close())
	if r.alone {
		r.Programs.Close()
	}
	return err
}
