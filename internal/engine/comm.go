package engine

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/memest"
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
	case step.HostUpdate:
		return p.hostUpdate(s, op)
	}
	return fmt.Errorf("engine: the operation is not supported")
}

// start begins a call to another rank of a group in the background. An error cancels the step at once: the rank may be
// waiting for a message that its peer sends only after this one, and would not look at this call before.
func (p *play) start(g group.Group, call group.Call) *group.Pending {
	pending := g.Start(p.ctx, call)
	go func() {
		if err := pending.Wait(); err != nil {
			p.cancel(err)
		}
	}()
	return pending
}

// messageOf returns the value that a message carries.
func messageOf(op step.Op) step.Value {
	v := step.Value{Held: step.Input, Block: op.Block, Micro: op.Micro}
	switch {
	case op.Kind == step.Send && op.What == step.Activation:
		v.Block++
	case op.Kind == step.Send:
		v.Held, v.Block = step.OutGrad, op.Block-1
	case op.What == step.Gradient:
		v.Held = step.OutGrad
	}
	return v
}

func (p *play) send(i int, op step.Op) error {
	v := p.values[messageOf(op)]
	if len(v) != 1 {
		return fmt.Errorf("engine: %v is not there", messageOf(op))
	}
	m, err := p.memoryOf(v[0])
	if err != nil {
		return err
	}
	p.traffic.sent[BetweenStages] += int64(m.buffer.Len * m.kind.Size())
	pending := p.start(p.world, group.Call{Kind: group.KindSend, Type: m.kind, Peer: op.Peer, In: m.buffer})
	p.begun[i] = &underWay{done: pending.Done(), wait: pending.Wait, end: func() error { m.on = nil; return nil }}
	return nil
}

func (p *play) receive(i int, op step.Op) error {
	v := messageOf(op)
	on, shape := p.own.lies(slot{kind: valueSlot, value: v}, p.sizes)
	a, err := p.expect(memest.Activations, p.globalShape(shape[0]), on)
	if err != nil {
		return err
	}
	pending := p.start(p.world, group.Call{Kind: group.KindRecv, Type: a.to.kind, Peer: op.Peer, Out: a.to.buffer})
	p.begun[i] = &underWay{done: pending.Done(), wait: pending.Wait, end: func() error {
		t, err := p.received(a)
		if err == nil {
			p.values[v] = []*dtensor.Tensor{t}
		}
		return err
	}}
	return nil
}

// arrival is where a tensor of another rank is received: in an array on the devices, or staged on the host.
type arrival struct {
	kind memest.Kind
	on   xla.Placement
	into *dtensor.Tensor // nil if staged
	to   *memory
}

// expect prepares to receive a tensor. The shape is that over all devices.
func (p *play) expect(kind memest.Kind, full shapes.Shape, on xla.Placement) (a *arrival, err error) {
	a = &arrival{kind: kind, on: on, to: &memory{}}
	if !p.reachable() {
		return a, a.to.stage(tensors.FromShape(full))
	}
	if a.into, err = p.arrays.borrow(kind, full, on); err == nil {
		a.to, err = p.memoryOf(a.into)
	}
	return a, err
}

// received returns the tensor once it has arrived.
func (p *play) received(a *arrival) (*dtensor.Tensor, error) {
	if a.into != nil {
		return a.into, nil
	}
	return p.arrays.place(a.kind, a.to.staged, a.on)
}

// globalShape returns the shape, over all devices, of an activation between blocks.
func (p *play) globalShape(local shapes.Shape) shapes.Shape {
	full := local.Clone()
	for _, a := range p.Mesh {
		if a.Name == p.Mesh[0].Name {
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

// background runs do on an operation's stream, after the operations whose results it uses. The rank calls end when it
// waits for the operation.
func (p *play) background(i int, op step.Op, kind string, do, end func() error) {
	s := p.streams[op.Stream()]
	if s == nil {
		s = newStream(len(p.plan.Ranks[p.own.rank]))
		p.streams[op.Stream()] = s
	}
	var before []<-chan struct{}
	for _, at := range p.flow.After[i] {
		if u := p.begun[at]; u != nil {
			before = append(before, u.done)
		}
	}
	done, wait := s.add(func() error {
		for _, d := range before {
			<-d
		}
		if p.ctx.Err() != nil { // its operands may not be there, and peers would mistake its calls for earlier ones
			return context.Cause(p.ctx)
		}
		defer p.span(kind, p.plan.Text(op))()
		err := caught(do)
		if err != nil { // the rank may be waiting for something else, and nothing later may begin
			p.cancel(p.within(op, err))
		}
		return err
	})
	p.begun[i] = &underWay{done, wait, end}
}

// gatherUnit gathers a unit's parameters from the ranks' shards.
func (p *play) gatherUnit(i int, op step.Op) error {
	u := p.own.units[op.Unit]
	g := p.groups[op.Axis]
	fresh, cell := p.gradsOf(op.Unit), p.own.cellOf(op.Unit)
	resident := p.flow.Resident[op.Unit]
	own := func() *dtensor.Tensor { return fresh.fresh } // read late: the update may still compute it
	if shard := p.cells[cell]; !resident {
		own = func() *dtensor.Tensor { return shard }
	}
	full := shapes.Make(p.policy.Compute, u.cuts*p.shards, u.size)
	on := p.own.unitPlacement(u, false)
	v := step.Value{Held: step.Full, Unit: op.Unit}
	var into *dtensor.Tensor
	if resident {
		into = p.cells[cell]
	} else {
		var err error
		if into, err = p.arrays.borrow(memest.Communication, full, on); err != nil {
			return err
		}
		p.values[v] = []*dtensor.Tensor{into}
	}
	p.traffic.sent[op.Axis] += full.ByteSize()
	end := func() error {
		if !resident {
			return nil
		}
		err := p.arrays.release(fresh.fresh)
		fresh.fresh = nil
		return err
	}
	if p.reachable() {
		p.background(i, op, trace.Gather, func() error { return p.call2(g, group.KindAllGather, own(), into) }, end)
		return nil
	}
	var placed *dtensor.Tensor
	p.background(i, op, trace.Gather, func() error {
		from, err := merged(own())
		if err != nil {
			return err
		}
		all, err := gatherRows(p.ctx, g, from, u.cuts, full)
		if err == nil {
			placed, err = p.place(all, on)
		}
		return err
	}, func() error {
		if resident {
			return errors.Join(p.arrays.put(&p.cells[cell], memest.Parameters, placed), end())
		}
		return p.arrays.put(&p.values[v][0], memest.Communication, placed)
	})
	return nil
}

// call2 runs a collective on two arrays of the device.
func (p *play) call2(g group.Group, kind group.Kind, in, out *dtensor.Tensor) error {
	from, err := p.memoryOf(in)
	if err != nil {
		return err
	}
	to, err := p.memoryOf(out)
	if err != nil {
		return err
	}
	return g.Do(p.ctx, group.Call{Kind: kind, Type: from.kind, Op: group.Sum, In: from.buffer, Out: to.buffer})
}

// reduceUnit reduces a unit's gradients over the ranks: an all-reduce, or a reduce-scatter if the unit is sharded along
// the axis.
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
	bytes := shapes.Make(p.policy.Reduce, u.cuts*p.shards, u.size).ByteSize()
	if !first {
		bytes /= int64(p.shards / p.perRank)
	}
	if hooked := p.hook != nil && !scatter; !hooked {
		p.traffic.sent[op.Axis] += bytes
	}
	var shard *dtensor.Tensor // the result
	if scatter && p.reachable() {
		var err error
		if shard, err = p.arrays.borrow(memest.Gradients, p.shardOf(u), p.own.unitPlacement(u, true)); err != nil {
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
		switch {
		case scatter:
			used = from
			to, err = p.scatter(p.groups[op.Axis], u, from, shard)
		default:
			if to, err = p.addEach(op, u, from, &counts); to != from {
				used = from
			}
		}
		if err != nil {
			return err
		}
		if first && g.reduced != nil { // accumulates over micro-batches
			added = to
			to, err = p.plus(g.reduced, to, p.own.unitPlacement(u, p.shards > 1))
		}
		g.reduced = to
		return err
	}, func() error {
		p.traffic.sent[op.Axis] += counts.Load()
		return p.arrays.release(used, added)
	})
	return nil
}

// shardOf is the shape of a shard of a unit's gradients over all of a rank's devices.
func (p *play) shardOf(u *unit) shapes.Shape { return shapes.Make(p.policy.Reduce, u.cuts*u.size) }

// scatter reduce-scatters full gradients: into shard, or staged if that is nil.
func (p *play) scatter(g group.Group, u *unit, full, shard *dtensor.Tensor) (*dtensor.Tensor, error) {
	if shard != nil {
		return shard, p.call2(g, group.KindReduceScatter, full, shard)
	}
	rows := u.cuts
	host, err := merged(full)
	if err == nil && rows > 1 {
		host, err = swapped(host, rows, p.shards)
	}
	if err != nil {
		return nil, err
	}
	in, out := &memory{}, &memory{}
	staged := tensors.FromShape(p.shardOf(u))
	if err := errors.Join(in.stage(host), out.stage(staged)); err != nil {
		return nil, err
	}
	if err := g.Do(p.ctx, group.Call{Kind: group.KindReduceScatter, Type: in.kind, Op: group.Sum, In: in.buffer,
		Out: out.buffer}); err != nil {
		return nil, err
	}
	return p.arrays.place(memest.Gradients, staged, p.own.unitPlacement(u, true))
}

// addEach all-reduces gradients, in place if possible, or calls the hook and counts its bytes.
func (p *play) addEach(op step.Op, u *unit, on *dtensor.Tensor, bytes *atomic.Int64) (*dtensor.Tensor, error) {
	g := p.groups[op.Axis]
	m, err := p.memoryOf(on)
	if err != nil {
		return nil, err
	}
	if p.hook != nil {
		grads := Gradients{Offsets: u.offsets, Unit: u.number, Type: m.kind, Data: m.buffer, Params: params.Tree{}}
		for _, at := range u.members {
			grads.Params = append(grads.Params, p.own.tree[at])
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
	return p.arrays.place(memest.Gradients, m.staged, p.own.unitPlacement(u, p.shards > 1))
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
		there := r.host.get(slot{kind: cellSlot, number: k})
		if there != nil {
			err = m.stage(there)
		} else {
			m, err = r.memoryOf(r.cells[k])
		}
		if err == nil {
			err = g.Do(ctx, group.Call{Kind: group.KindAllReduce, Type: m.kind, Op: group.Mean, In: m.buffer,
				Out: m.buffer})
		}
		if err == nil && m.staged != nil && there == nil {
			var mean *dtensor.Tensor
			if mean, err = r.place(m.staged, r.own.cells[k].on); err == nil {
				err = r.arrays.put(&r.cells[k], r.own.cells[k].kind, mean)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}
