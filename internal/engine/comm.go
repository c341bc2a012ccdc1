package engine

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/xla"
)

// begin starts an operation between ranks, or with the host, beside the passes.
func (p *play) begin(s *segment, op step.Op) error {
	switch i := s.from; op.Kind {
	case step.Send:
		return p.send(i, op)
	case step.Recv:
		return p.receive(i, op)
	case step.Gather:
		return p.gatherUnit(i, op)
	case step.Reduce:
		if op.What == step.State {
			return p.average(i, op)
		}
		return p.reduceUnit(i, op)
	case step.Store:
		return p.store(i, op)
	case step.Fetch:
		return p.fetch(i, op)
	}
	return p.hostUpdate(s, op)
}

// start begins a call to another rank of an axis's group in the background. An error cancels the step at once: the rank
// may be waiting for a message that its peer sends only after this one, and would not look at this call before.
func (p *play) start(g group.Group, axis string, call group.Call) *group.Pending {
	pending := g.Start(p.ctx, call)
	go func() {
		if err := pending.Wait(); err != nil {
			p.cancel(p.within(step.Op{Axis: axis}, err))
		}
	}()
	return pending
}

func (p *play) send(i int, op step.Op) error {
	v := p.values[op.Message()]
	if len(v) != 1 {
		return fmt.Errorf("engine: %v is not there", op.Message())
	}
	m, err := p.memoryOf(v[0])
	if err != nil {
		return err
	}
	p.traffic.sent[BetweenStages] += int64(m.buffer.Len * m.kind.Size())
	pending := p.start(p.world, "", group.Call{Kind: group.KindSend, Type: m.kind, Peer: op.Peer, In: m.buffer})
	p.begun[i] = &underWay{done: pending.Done(), wait: pending.Wait, end: func() error { m.on = nil; return nil }}
	return nil
}

func (p *play) receive(i int, op step.Op) error {
	v := op.Message()
	on, shape := p.own.lies(slot{kind: valueSlot, value: v}, p.sizes)
	a, err := p.expect(memest.Activations, p.globalShape(shape[0]), on, nil)
	if err != nil {
		return err
	}
	pending := p.start(p.world, "", group.Call{Kind: group.KindRecv, Type: a.to.kind, Peer: op.Peer, Out: a.to.buffer})
	p.begun[i] = &underWay{done: pending.Done(), wait: pending.Wait, end: func() error {
		t, err := p.received(a)
		if err == nil {
			p.values[v] = []*dtensor.Tensor{t}
		}
		return err
	}}
	return nil
}

// arrival is where a tensor of other ranks is received: in an array on the devices, or staged on the host.
type arrival struct {
	kind memest.Kind
	on   xla.Placement
	into *dtensor.Tensor // nil if staged, unless it replaces this one
	to   *memory
}

// expect prepares to receive a tensor, in the place of an old one if there is one. The shape is over all devices.
func (p *play) expect(kind memest.Kind, full shapes.Shape, on xla.Placement, old *dtensor.Tensor) (*arrival, error) {
	a, err := &arrival{kind: kind, on: on, into: old, to: &memory{}}, error(nil)
	if !p.reachable() {
		return a, a.to.stage(tensors.FromShape(full))
	}
	if old == nil {
		a.into, err = p.arrays.borrow(kind, full, on)
	}
	if err == nil {
		a.to, err = p.memoryOf(a.into)
	}
	return a, err
}

// received returns the tensor once it has arrived.
func (r *Rank) received(a *arrival) (*dtensor.Tensor, error) {
	if a.to.staged == nil {
		return a.into, nil
	}
	t, err := r.place(a.to.staged, a.on)
	if err == nil {
		err = r.arrays.put(&a.into, a.kind, t)
	}
	return a.into, err
}

// globalShape returns the shape, over all devices, of an activation between blocks.
func (p *play) globalShape(local shapes.Shape) shapes.Shape {
	full := local.Clone()
	for _, a := range p.Mesh {
		if slices.Contains(p.own.examples(), a.Name) {
			full.Dimensions[0] *= a.Size
		}
		for _, name := range p.Shards.Between {
			if a.Name == name {
				full.Dimensions[1] *= a.Size
			}
		}
	}
	return full
}

// background runs do after the operation before it on its stream, and after those whose results it uses. The rank calls
// end when it waits for the operation.
func (p *play) background(i int, op step.Op, kind string, do, end func() error) {
	var before []<-chan struct{}
	if last := p.streams[op.Stream()]; last != nil {
		before = append(before, last)
	}
	for _, at := range p.flow.After[i] {
		if u := p.begun[at]; u != nil {
			before = append(before, u.done)
		}
	}
	done, failed := make(chan struct{}), error(nil)
	go func() {
		defer close(done)
		for _, d := range before {
			<-d
		}
		// Without its operands, peers would mistake its calls for earlier ones.
		if failed = context.Cause(p.ctx); failed != nil {
			return
		}
		defer p.span(kind, p.plan.Text(op))()
		// The rank may be waiting for something else, and nothing later may begin.
		if failed = caught(do); failed != nil {
			p.cancel(p.within(op, failed))
		}
	}()
	p.streams[op.Stream()] = done
	p.begun[i] = &underWay{done, func() error { return failed }, end}
}

// caught returns a panic as an error, so that it fails the rank and not the process.
func caught(do func() error) (err error) {
	defer func() {
		if thrown := recover(); thrown != nil {
			err = fmt.Errorf("panic: %v\n%s", thrown, debug.Stack())
		}
	}()
	return do()
}

// gatherUnit gathers a unit's parameters from the ranks' shards.
func (p *play) gatherUnit(i int, op step.Op) (err error) {
	u, grads, cell := p.own.units[op.Unit], p.gradsOf(op.Unit), p.own.cellOf(op.Unit)
	full, on := shapes.Make(p.policy.Compute, u.cuts*u.n, u.size), p.own.unitPlacement(u, false)
	shard, resident := p.cells[cell], p.flow.Resident[op.Unit]
	into, at := shard, &p.cells[cell]
	if !resident {
		if into, err = p.arrays.borrow(memest.Communication, full, on); err != nil {
			return err
		}
		list := []*dtensor.Tensor{into}
		p.values[step.Value{Held: step.Full, Unit: op.Unit}], at = list, &list[0]
	}
	a, err := p.expect(memest.Parameters, full, on, into)
	if err != nil {
		return err
	}
	p.traffic.sent[op.Axis] += full.ByteSize()
	p.background(i, op, trace.Gather, func() error {
		if resident { // read late: the update may still compute it
			shard = grads.fresh
		}
		return p.collect(p.groups[op.Axis], group.KindAllGather, shard, a, u)
	}, func() (err error) {
		if *at, err = p.received(a); err == nil && resident {
			err = p.arrays.release(grads.fresh)
			grads.fresh = nil
		}
		return err
	})
	return nil
}

// collect runs a collective on an array of a unit, with its result in a place. A rank's devices may have different
// parts of the unit, and the group has rows of all of them.
func (p *play) collect(g group.Group, kind group.Kind, in *dtensor.Tensor, a *arrival, u *unit) error {
	from, err := p.memoryOf(in)
	if err == nil && u.cuts > 1 && kind == group.KindReduceScatter {
		var rows *tensors.Tensor
		if rows, err = swapped(from.staged, u.cuts, u.n); err == nil {
			err = from.stage(rows)
		}
	}
	if err == nil {
		err = g.Do(p.ctx, group.Call{Kind: kind, Type: from.kind, Op: group.Sum, In: from.buffer, Out: a.to.buffer})
	}
	if err == nil && u.cuts > 1 && kind == group.KindAllGather {
		a.to.staged, err = swapped(a.to.staged, g.Size(), u.cuts)
	}
	return err
}

// reduceUnit reduces a unit's gradients over the ranks: an all-reduce, or a reduce-scatter along the axis of shards.
func (p *play) reduceUnit(i int, op step.Op) error {
	u := p.own.units[op.Unit]
	if u.size == 0 {
		return nil // the loss depends on none of its parameters
	}
	g := p.gradsOf(op.Unit)
	first := u.Reduce[0] == op.Axis
	from := g.sum
	if first {
		if g.sum = nil; from == nil { // the next gradients begin a new sum
			return fmt.Errorf("engine: there are no gradients of %s", u.Name)
		}
	}
	scatter := op.Axis == u.Shard
	bytes := shapes.Make(p.policy.Reduce, u.cuts*u.n, u.size).ByteSize()
	if !first {
		bytes /= int64(u.n / u.perRank)
	}
	if hooked := p.hook != nil && !scatter; !hooked {
		p.traffic.sent[op.Axis] += bytes
	}
	var shard *arrival
	if scatter {
		var err error
		full := shapes.Make(p.policy.Reduce, u.cuts*u.size) // over all of a rank's devices
		if shard, err = p.expect(memest.Gradients, full, p.own.unitPlacement(u, true), nil); err != nil {
			return err
		}
	}
	var used, added *dtensor.Tensor // freed at the end
	var counts atomic.Int64         // bytes that a hook gives to the group
	p.background(i, op, trace.Reduce, func() (err error) {
		if !first {
			from = g.reduced
		}
		var to *dtensor.Tensor
		if !scatter {
			to, err = p.addEach(op, u, from, &counts)
		} else if err = p.collect(p.groups[op.Axis], group.KindReduceScatter, from, shard, u); err == nil {
			to, err = p.received(shard)
		}
		if to != from {
			used = from
		}
		if err != nil {
			return err
		}
		if first && g.reduced != nil { // accumulates over micro-batches
			added = to
			to, err = p.plus(g.reduced, to, p.own.unitPlacement(u, u.n > 1))
		}
		g.reduced = to
		return err
	}, func() error {
		p.traffic.sent[op.Axis] += counts.Load()
		return p.arrays.release(used, added)
	})
	return nil
}

// addEach all-reduces gradients, in place if possible, or calls the hook and counts its bytes.
func (p *play) addEach(op step.Op, u *unit, on *dtensor.Tensor, bytes *atomic.Int64) (*dtensor.Tensor, error) {
	g := p.groups[op.Axis]
	m, err := p.memoryOf(on)
	if err != nil {
		return nil, err
	}
	if p.hook != nil {
		grads := Gradients{Unit: u.number, Type: m.kind, Data: m.buffer, Params: params.Tree{}}
		for _, at := range u.members {
			grads.Params, grads.Offsets = append(grads.Params, p.own.tree[at]), append(grads.Offsets, p.own.offsets[at])
		}
		grads.Params = grads.Params.As(p.policy.Reduce)
		err = p.hook.Reduce(p.ctx, counted{g, bytes}, grads)
	} else {
		err = g.Do(p.ctx, group.Call{Kind: group.KindAllReduce, Type: m.kind, Op: group.Sum, In: m.buffer,
			Out: m.buffer})
	}
	if err != nil || m.staged == nil {
		return on, err
	}
	return p.arrays.place(memest.Gradients, m.staged, p.own.unitPlacement(u, u.n > 1))
}

// plus adds b to a, whose memory it reuses.
func (p *play) plus(a, b *dtensor.Tensor, on xla.Placement) (*dtensor.Tensor, error) {
	add, err := p.compile("add", func(in []*graph.Node) []*graph.Node { return []*graph.Node{graph.Add(in[0], in[1])} },
		layout{in: []xla.Placement{on, on}, out: []xla.Placement{on}, donated: []int{0}})
	if err != nil {
		return nil, err
	}
	out, err := add.Call(a, b)
	if err != nil {
		return nil, err
	}
	p.arrays.changed(a, out[0])
	return out[0], nil
}

// average averages the ranks' parameters and optimizer states.
func (p *play) average(i int, op step.Op) error {
	for _, k := range p.own.floats() {
		p.traffic.sent[op.Axis] += p.own.cells[k].shape.ByteSize()
	}
	p.background(i, op, trace.Reduce, func() error { return p.averageCells(p.ctx, p.groups[op.Axis]) }, nil)
	return nil
}

// floats returns the cells that can be averaged: parameters and optimizer states.
func (o *own) floats() (cells []int) {
	for k, c := range o.cells {
		if c.kind != batchKind && c.shape.DType.IsFloat() {
			cells = append(cells, k)
		}
	}
	return cells
}

func (r *Rank) averageCells(ctx context.Context, g group.Group) error {
	for _, k := range r.own.floats() {
		m, err := &memory{}, error(nil)
		if there := r.host.get(slot{kind: cellSlot, number: k}); there != nil {
			err = m.stage(there)
		} else {
			m, err = r.memoryOf(r.cells[k])
		}
		if err == nil {
			err = g.Do(ctx, group.Call{Kind: group.KindAllReduce, Type: m.kind, Op: group.Mean, In: m.buffer,
				Out: m.buffer})
		}
		if err == nil && m.staged != nil && m.on != nil {
			r.cells[k], err = r.received(&arrival{r.own.cells[k].kind, r.own.cells[k].on, m.on, m})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Hook replaces the all-reduce of a unit's gradients: PyTorch's communication hooks. Each rank has its own hook, which
// may store data from step to step.
type Hook interface {
	// Reduce replaces this rank's gradients by the sum of all ranks' gradients or an approximation; all ranks must get
	// the same bits. All ranks call it with the same units in the same order, one at a time. It may use the group.
	Reduce(ctx context.Context, g group.Group, grads Gradients) error
}

// Server is a hook that also updates: its Reduce replaces the gradients by new parameters. It has the optimizer states,
// and ranks have none; ranks need not hold the same bits. The loss of a step is that of a rank's own shard of the
// batch, so ranks do not wait for each other.
type Server interface {
	Hook
	// Begin takes the full state on the host, in the order of train.Recipe.State: at the start, and when a checkpoint
	// is loaded. It is a collective call of a rank on a device. The server sends through the group of the first call,
	// which counts its bytes.
	Begin(ctx context.Context, g group.Group, device int, state []*tensors.Tensor) error
	// Parts returns what the rank writes into the checkpoint of a step.
	Parts(steps int) ([]checkpoint.Part, error)
	// Close ends the communication. All ranks call it together, except one that has failed, which gives its error. Only
	// the first call has an effect.
	Close(failed error) error
}

// pulled is the optimizer of parameters that a server updates: it takes them from the place of the gradients.
type pulled struct{}

// Validate implements [optim.Optimizer].
func (pulled) Validate() error { return nil }

// States implements [optim.Optimizer].
func (pulled) States(params.Spec, optim.Part) []optim.State { return nil }

// Update implements [optim.Optimizer].
func (pulled) Update(u optim.Update) (*graph.Node, []*graph.Node) {
	return graph.ConvertDType(u.Grad, u.Param.DType()), nil
}

// Gradients are a rank's gradients of a unit, such as a bucket, in host memory.
type Gradients struct {
	Params  params.Tree // the parameters, in the order of Data and the type of its elements
	Offsets []int       // where each one's gradient begins, in elements
	Unit    int         // of the plan, from 0
	Type    group.Type
	Data    group.Buffer
}

// Float32 returns the gradients as a slice, without a copy, and an error if they have another type.
func (g Gradients) Float32() ([]float32, error) {
	if g.Type != group.Float32 {
		return nil, fmt.Errorf("ddp: gradients are summed in %v, but the hook takes float32 only: "+
			"set Recipe.Precision.Reduce", g.Type)
	}
	return unsafe.Slice((*float32)(g.Data.Data), g.Data.Len), nil
}

// counted is a hook's view of a group. It counts the larger of each call's inputs and outputs, except of receives.
type counted struct {
	group.Group
	bytes *atomic.Int64
}

func (c counted) count(call group.Call) {
	if call.Kind != group.KindRecv {
		c.bytes.Add(int64(max(call.In.Len, call.Out.Len) * call.Type.Size()))
	}
}

// Do implements [group.Group].
func (c counted) Do(ctx context.Context, call group.Call) error {
	c.count(call)
	return c.Group.Do(ctx, call)
}

// Start implements [group.Group].
func (c counted) Start(ctx context.Context, call group.Call) *group.Pending {
	c.count(call)
	return c.Group.Start(ctx, call)
}
