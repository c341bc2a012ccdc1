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
// A step that fails leaves the rank lost, and all others: what is asked of it after is an error. The error says which rank failed,
// and in which operation. Go on in a new group, from the last checkpoint: batches are functions of the step's number, so none is lost and
// none comes twice.
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
	old    map[int][]*dtensor.Tensor // by version: parameters before the newest, which passes of micro-batches under way use

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

// grads are the sums of a unit's gradients, the rank's own and those over ranks; who reduces has both meanwhile. Behind them there
// is the shard of new parameters, until it is gathered.
type grads struct{ sum, reduced, fresh *dtensor.Tensor }

// prepared is a plan, cut for a rank.
type prepared struct {
	plan     *step.Plan
	flow     *step.Flow
	versions []int // by position: that of the parameters which an operation uses, or makes
	segments []*segment
	waits    map[int][]int // by position: what ends there
}

// Join makes this process's rank of a group, which drives the backend's devices from number first on. The group has as many ranks
// as the plans. It is a collective call: all begin with rank 0's initial state.
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

// begin takes a state, whole and on the host, in place of the one that is there. The tree lists it: all of the rank's, or of a server
// all.
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

// replace takes a state, as the rank's entries list it, whole and on the host, in place of the one that is there.
func (r *Rank) replace(values []*tensors.Tensor) error {
	var all []*tensors.Tensor
	for _, c := range r.own.cells {
		t, err := r.own.arrayOf(c, values, r.place_)
		if err != nil {
			return err
		}
		all = append(all, t)
	}
	var cells []*dtensor.Tensor
	for i, c := range r.own.cells {
		if c.host {
			x := slot{kind: cellSlot, number: i}
			r.host.take(x)
			r.host.put(x, all[i])
			cells = append(cells, nil)
			continue
		}
		on, err := r.place(all[i], c.on)
		if err != nil {
			return errors.Join(err, r.arrays.release(cells...))
		}
		r.arrays.add(c.kind, on)
		cells = append(cells, on)
	}
	old := r.cells
	r.cells = cells
	return r.arrays.release(old...)
}

// Step trains on one batch, inputs and targets of shape (B,…): the same on all ranks. Its rows are divided by the ranks with other
// rows, the micro-batches, and the devices with other rows; a B that cannot be is an error. The loss is the mean over the whole batch.
// It is a collective call.
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
	micro, devices := r.Plans[0].Micro, copies*r.Mesh[0].Size
	if inputs != nil && inputs.Rank() > 0 && inputs.Shape().Dim(0)%(devices*micro) != 0 {
		return nil, fmt.Errorf("engine: a batch of %d rows for %d devices with other rows and %d micro-batches each: make it a multiple of %d",
			inputs.Shape().Dim(0), devices, micro, devices*micro)
	}
	return microBatches(inputs, targets, at, copies, micro)
}

// prepare makes the programs for micro-batches of a shape, before any rank begins.
func (r *Rank) prepare(part microBatch) error {
	in, out := part.Inputs.Shape().Clone(), part.Targets.Shape().Clone()
	if in.Equal(r.inputs) && out.Equal(r.targets) {
		return nil
	}
	r.inputs, r.evaluation, r.prepared = shapes.Shape{}, nil, nil // until all is well
	local := func(s shapes.Shape) shapes.Shape {
		s = s.Clone()
		s.Dimensions[0] /= r.Mesh[0].Size
		return s
	}
	if r.mesh.NumDevices() == 1 { // blocks of one kind share programs
		if err := r.kinds.Check(r.backend.Text, r.own.passes, in); err != nil {
			return err
		}
	}
	_, split := find(r.Plans[0], func(op step.Op) bool { return op.Kind == step.InputGrad })
	var err error
	if r.sizes, err = r.measure(r.own, local(in), local(out), split); err != nil {
		return err
	}
	r.own = r.ranks[r.own.rank].without(r.sizes.idle)
	for _, p := range r.Plans {
		one, err := r.ready(r.own, p)
		if err != nil {
			return err
		}
		r.prepared = append(r.prepared, one)
	}
	r.inputs, r.targets = in, out
	return nil
}

// ready cuts a plan, and makes the programs.
func (r *Rank) ready(o *own, p *step.Plan) (*prepared, error) {
	f, err := p.Flow(o.rank)
	if err != nil {
		return nil, err
	}
	versions := make([][]int, len(p.Ranks))
	if p.Weights != step.Flush { // else there is one
		if versions, err = p.Versions(); err != nil {
			return nil, err
		}
	}
	alone := r.world.Size() == 1 && p.Weights == step.Flush && !r.Blockwise // else passes use versions of the parameters, and are programs of their own
	one := &prepared{plan: p, flow: f, versions: versions[o.rank], segments: o.segments(p, f, alone), waits: map[int][]int{}}
	for at, done := range f.Done {
		if done != at {
			one.waits[done] = append(one.waits[done], at)
		}
	}
	summed := map[int]bool{}
	for _, s := range one.segments {
		s.stay = one.stays(s, p.Ranks[o.rank])
		if err := r.devices.prepare(o, p, f, s, r.sizes, summed, r.world.Size()); err != nil {
			return nil, err
		}
		for _, op := range p.Ranks[o.rank][s.from:s.to] {
			o.sum(op, summed)
		}
	}
	return one, nil
}

// sum follows the parameters of which there are gradients that nobody has used up.
func (o *own) sum(op step.Op, summed map[int]bool) {
	switch {
	case op.Kind == step.Backward, op.Kind == step.WeightGrad:
		for _, at := range o.homes[op.Block] {
			summed[at] = true
		}
	case op.Kind == step.Reduce && op.What == step.Gradient, op.Kind == step.Store && op.What == step.Gradient, op.Kind == step.Update:
		for _, at := range o.updated(op.Unit) {
			if reduce := o.unitOf[at].Reduce; op.Kind != step.Reduce && len(reduce) == 0 || op.Kind == step.Reduce && reduce[0] == op.Axis {
				delete(summed, at)
			}
		}
	}
}

// stays says whether passes behind an update use the parameters before it.
func (p *prepared) stays(s *segment, list []step.Op) bool {
	at := s.to - 1
	return p.versions != nil && list[at].Kind == step.Update && p.uses(list, s.to, p.versions[at]-1)
}

// uses says whether passes from a position on use a version of the parameters.
func (p *prepared) uses(list []step.Op, from, version int) bool {
	for i := from; i < len(list); i++ {
		if list[i].Kind.Pass() && list[i].Kind != step.Update && p.versions[i] == version {
			return true
		}
	}
	return false
}

// Memory is the most bytes of each kind that a device of the rank has held at once in the last step, and memest.Temporary, what
// the program needs besides that needs most.
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

// Params returns copies of the parameters that the rank has, whole, by name and in the type that they are kept in. It is a collective
// call where ranks have shards.
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

// entry returns a whole entry of the state. It is a collective call where ranks have shards of it.
func (r *Rank) entry(ctx context.Context, i int) (*tensors.Tensor, error) {
	e := r.own.entries[i]
	held, err := r.own.held(i, r.cellNow, r.place_)
	if err != nil || e.flat == 0 {
		return held, err
	}
	if g := r.groups[r.axis]; g != nil {
		whole := shapes.Make(held.DType(), g.Size()*held.Size())
		if held, err = gatherRows(ctx, g, held, ranks(e.cut), whole); err != nil {
			return nil, err
		}
	}
	return r.own.unflatten(e, held)
}

// gatherRows puts together what ranks have on the host, each of several rows: row by row.
func gatherRows(ctx context.Context, g group.Group, own *tensors.Tensor, rows int, whole shapes.Shape) (*tensors.Tensor, error) {
	all := tensors.FromShape(whole)
	var inner, failed error
	err := own.ConstBytes(func(in []byte) {
		inner = all.MutableBytes(func(out []byte) { failed = group.AllGather(ctx, g, in, out) })
	})
	if err := errors.Join(err, inner, failed); err != nil || rows == 1 {
		return all, err
	}
	return swapped(all, g.Size(), rows)
}

// lose remembers what the rank was lost by.
func (r *Rank) lose(by error) error {
	err := fmt.Errorf("rank %d is lost: join a new group and load the last checkpoint; it was lost by: %w", r.world.Rank(), by)
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
