package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
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
	"github.com/shardbook/shardbook/lib/xla"
)

// Rank is one of the ranks that train together. It is not safe for concurrent use.
//
// If a step fails on one rank, all ranks become unusable: later calls return an error, which says which rank failed in
// which operation. Continue in a new group from the last checkpoint: batches are functions of the step's number, so
// none is skipped or repeated.
type Rank struct {
	*devices
	own    *own
	world  group.Group
	groups map[string]group.Group // by axis of the plans
	hook   Hook
	server Server        // the hook, if it updates
	served *atomic.Int64 // bytes that it has sent since the last step

	arrays *arrays
	host   *host
	cells  []*dtensor.Tensor
	values map[step.Value][]*dtensor.Tensor
	grads  map[int]*grads            // by unit
	old    map[int][]*dtensor.Tensor // by version: older parameters, for micro-batches under way

	columns      map[string]program // of columnsNow
	prepared     []*prepared        // by plan
	evaluation   *prepared
	inputs       shapes.Shape // shapes of the micro-batches that it is prepared for
	targets      shapes.Shape
	sizes        *sizes
	traffic      *traffic
	communicated int64 // bytes in all steps
	steps        int
	failed       error
	alone        bool // it closes the programs
}

// grads are a unit's gradients on a rank: accumulated, and reduced over ranks; while they are reduced there are both.
// Fresh is the shard of new parameters until it is gathered.
type grads struct{ sum, reduced, fresh *dtensor.Tensor }

// Join makes this process one rank of a group, on the backend's devices from number first on. The group has as many
// ranks as the plans. It is a collective call: all ranks start with rank 0's initial state.
func (p *Programs) Join(ctx context.Context, g group.Group, first int) (*Rank, error) {
	if g.Size() != len(p.ranks) {
		return nil, fmt.Errorf("engine: a group of %d ranks for a plan of %d ranks: make them equal", g.Size(),
			len(p.ranks))
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
		old: map[int][]*dtensor.Tensor{}, columns: map[string]program{}}
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

// begin replaces the state by full tensors on the host, which the tree lists: the rank's, or all for a server.
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

// Server returns the hook that updates in the rank's place, or nil.
func (r *Rank) Server() Server { return r.server }

// index returns the rank's index in its group along an axis; 0 if the axis is of its own devices, or "".
func (r *Rank) index(axis string) int {
	if g := r.groups[axis]; g != nil {
		return g.Rank()
	}
	return 0
}

// split makes the groups of an axis.
func (r *Rank) split(ctx context.Context, a step.Axis) error {
	if len(a.Groups) == 0 {
		return nil
	}
	at := slices.IndexFunc(a.Groups, func(g []int) bool { return slices.Contains(g, r.world.Rank()) })
	g, err := r.world, error(nil)
	if len(a.Groups[0]) < r.world.Size() || slices.Contains(r.Between, a.Name) { // whose calls are beside the world's
		g, err = r.world.Split(ctx, at, slices.Index(a.Group(r.world.Rank()), r.world.Rank()))
	}
	if at >= 0 {
		r.groups[a.Name] = g
	}
	return err
}

// fromFirst broadcasts rank 0's values of tensors on the host.
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

// Step trains on one batch, which all ranks give in full: inputs and targets of shape (B,…). B is divided by the
// data-parallel ranks, their micro-batches and their data-parallel devices; it returns an error if that is not
// possible. The loss is the mean over the full batch. It is a collective call.
func (r *Rank) Step(ctx context.Context, inputs, targets *tensors.Tensor) (train.Metrics, error) {
	if err := cmp.Or(r.failed, train.CheckBatch(r.model, inputs, targets)); err != nil {
		return train.Metrics{}, err
	}
	parts, err := r.parts(inputs, targets)
	if err != nil {
		return train.Metrics{}, err
	}
	m, err := r.step(ctx, r.prepared[r.steps%len(r.Plans)], parts)
	if err != nil {
		return train.Metrics{}, r.fail(fmt.Errorf("step %d: %w", r.steps, err))
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

// parts returns the rank's micro-batches of a batch, which the rank's devices divide further, and prepares for them.
func (r *Rank) parts(inputs, targets *tensors.Tensor) ([]microBatch, error) {
	copies, at := r.own.replicas()
	parts, err := microBatches(inputs, targets, at/r.ring, copies/r.ring, r.size(r.own.examples()...), r.Plans[0].Micro)
	if err == nil {
		err = r.prepare(parts[0])
	}
	return parts, err
}

// Memory returns the peak memory of each kind, in bytes, that each device of the rank had in the last step, and as
// memest.Temporary the largest temporary memory of a program.
func (r *Rank) Memory() map[memest.Kind]int64 {
	kinds := r.arrays.peaks()
	if n := r.traffic.temporary(); n > 0 {
		kinds[memest.Temporary] = n
	}
	return kinds
}

// Plan returns the plan of the next step.
func (r *Rank) Plan() *step.Plan { return r.original[r.steps%len(r.original)] }

// Steps returns the number of batches trained on, which is the number of the next one, from 0.
func (r *Rank) Steps() int { return r.steps }

// Params returns copies of the rank's parameters, unsharded, by name, in the type of the master weights: all, or those
// named. It is a collective call if ranks have shards.
func (r *Rank) Params(ctx context.Context, names ...string) (params.Named[*tensors.Tensor], error) {
	if r.failed != nil {
		return nil, r.failed
	}
	var some []int
	for i, s := range r.own.full {
		if slices.Contains(names, s.Name) {
			some = append(some, i)
		}
	}
	now := r.contentNow
	if names == nil {
		some = r.own.all
	} else {
		var err error
		if now, err = r.columnsNow(some); err != nil {
			return nil, r.fail(err)
		}
	}
	all := params.Named[*tensors.Tensor]{}
	for _, i := range some {
		t, err := r.entryOf(ctx, i, now)
		if err != nil {
			return nil, r.orFail(err)
		}
		all[r.own.full[i].Name] = t
	}
	return all, nil
}

// fail stores why the rank became unusable.
func (r *Rank) fail(by error) error {
	err := fmt.Errorf("rank %d has failed: join a new group and load the last checkpoint; the cause: %w",
		r.world.Rank(), by)
	r.failed = err
	return errors.Join(err, r.Close())
}

// orFail makes the rank unusable if the error is the group's.
func (r *Rank) orFail(err error) error {
	var failure *group.Failure
	if errors.As(err, &failure) {
		return r.fail(err)
	}
	return err
}

// Close frees the rank's memory. It waits for nobody, unless there is a server.
func (r *Rank) Close() error {
	var err error
	if r.server != nil {
		err = r.server.Close(r.failed)
	}
	if r.failed == nil {
		r.failed = errors.New("the rank is closed: join a group again")
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

// microBatch is the examples that a rank computes with at once.
type microBatch struct {
	Inputs, Targets *tensors.Tensor
	Row             uint32 // index of the first example in the batch of all ranks
}

// microBatches returns a rank's micro-batches of the batch of all ranks, of which the first rank has the first
// examples. It returns an error if the examples cannot be divided evenly between all devices.
func microBatches(inputs, targets *tensors.Tensor, rank, ranks, devices, micro int) ([]microBatch, error) {
	if inputs == nil || targets == nil {
		return nil, errors.New("engine: the inputs or the targets are nil: give both")
	}
	if in, out := inputs.Shape(), targets.Shape(); in.Rank() == 0 || out.Rank() == 0 || in.Dim(0) != out.Dim(0) ||
		in.Dim(0) == 0 {
		return nil, fmt.Errorf("engine: inputs of shape %s and targets of shape %s: give both the same number of "+
			"examples, along their first axis", in, out)
	}
	n, each := inputs.Shape().Dim(0), ranks*devices*micro
	if n%each != 0 {
		return nil, fmt.Errorf("engine: a batch of %d examples for %d data-parallel devices with %d micro-batches "+
			"each: make it a multiple of %d", n, ranks*devices, micro, each)
	}
	size, all := n/(ranks*micro), make([]microBatch, micro)
	for i := range all {
		first := (rank*micro + i) * size
		in, err := examples(inputs, first, size)
		out, failed := examples(targets, first, size)
		if err := errors.Join(err, failed); err != nil {
			return nil, err
		}
		all[i] = microBatch{in, out, uint32(first)}
	}
	return all, nil
}

// examples copies the examples of a batch from first on.
func examples(t *tensors.Tensor, first, size int) (*tensors.Tensor, error) {
	shape := t.Shape().Clone()
	each := shape.Size() / shape.Dim(0)
	shape.Dimensions[0] = size
	part := tensors.FromShape(shape)
	return part, moved(part, t, func(move func(to, from, n int)) { move(0, first*each, size*each) })
}

// Evaluate returns the mean loss over a batch, without noise, and changes nothing. Batches are as in [Rank.Step]. It is
// a collective call. Errors make the rank unusable, as those of a step do.
func (r *Rank) Evaluate(ctx context.Context, inputs, targets *tensors.Tensor) (float64, error) {
	if r.failed != nil {
		return 0, r.failed
	}
	parts, err := r.parts(inputs, targets)
	if err != nil {
		return 0, err
	}
	quiet := *r.common
	quiet.model.Noisy = false
	own := *r.own
	own.common, own.passes.Model.Noisy = &quiet, false
	own.passes.Keep = false // no backward pass, and without noise blocks need not have gradients
	if r.evaluation == nil {
		if r.evaluation, err = r.ready(&own, forwardOnly(r.Plans[0])); err != nil {
			return 0, err
		}
	}
	e := *r // with the same arrays
	e.own = &own
	m, err := e.step(ctx, r.evaluation, parts)
	if err != nil {
		return 0, r.fail(err)
	}
	return m.Loss, nil
}

// forwardOnly returns the forward passes of a plan, with their communication.
func forwardOnly(p *step.Plan) *step.Plan {
	q := p.Clone()
	q.Weights, q.Every = step.Flush, q.Micro // all use the newest version
	for r, list := range p.Ranks {
		q.Ranks[r] = nil
		for i, op := range list {
			kind := op.Kind
			if kind == step.Wait {
				kind = op.Of
			}
			keep := kind == step.Forward || (kind == step.Send || kind == step.Recv) && op.What == step.Activation
			if op.What == step.Parameters {
				keep = op.Kind == step.Gather && forwards(p, slices.All(list[i+1:]), op.Unit) ||
					op.Kind == step.Free && forwards(p, slices.Backward(list[:i]), op.Unit)
			}
			if keep {
				q.Ranks[r] = append(q.Ranks[r], op)
			}
		}
	}
	return q
}

// forwards reports whether a forward pass uses a unit's parameters before they are gathered or freed.
func forwards(p *step.Plan, list iter.Seq2[int, step.Op], unit int) bool {
	for _, op := range list {
		switch {
		case op.Kind == step.Forward && slices.Contains(p.Blocks[op.Block].Units, unit):
			return true
		case (op.Kind == step.Gather || op.Kind == step.Free) && op.What == step.Parameters && op.Unit == unit:
			return false
		}
	}
	return false
}

// BetweenStages names, in [Rank.Traffic], activations and their gradients that are sent to other ranks.
const BetweenStages = "pipe"

// traffic is what a rank has sent in a step.
type traffic struct {
	calls map[*xla.Program]int // calls; their collectives are known once they are compiled
	ran   map[needs]bool       // programs
	sent  map[string]int64     // bytes to other ranks, by axis
}

// needs is a program that knows its memory.
type needs interface{ Memory() (xla.Memory, error) }

// temporary returns the largest temporary memory, on a device, of a program in the last step.
func (t *traffic) temporary() (most int64) {
	if t == nil {
		return 0
	}
	for p := range t.ran {
		if m, err := p.Memory(); err == nil { // else it is closed
			most = max(most, m.Temporary)
		}
	}
	return most
}

// Traffic returns the bytes that the rank sent in the last step, by axis. A collective counts as its inputs or outputs
// on each device, whichever are larger: between the rank's own devices by the axes that xla.Program.CollectivesAlong
// names, between ranks by the plan's axis. If a hook reduces gradients, its calls count. Messages between stages, of
// all the rank's devices, are under [BetweenStages].
func (r *Rank) Traffic() (map[string]int64, error) {
	if r.failed != nil {
		return nil, r.failed
	}
	all := map[string]int64{}
	if r.traffic == nil {
		return all, nil
	}
	for name, n := range r.traffic.sent {
		all[name] += n
	}
	for p, calls := range r.traffic.calls {
		along, err := p.CollectivesAlong()
		if err != nil {
			return nil, err
		}
		for axes, report := range along {
			for _, t := range report {
				all[axes] += int64(calls) * t.Bytes
			}
		}
	}
	return all, nil
}
