package group

import (
	"context"
	"fmt"
	"slices"
	"unsafe"

	"github.com/shardbook/shardbook/lib/collective/plan"
)

// RunPlan runs a plan over a group, by nothing but sends and receives: slower than the group's own collectives, but
// every message can be seen and counted. All ranks call it with the same plan, a buf of the same length and the same
// reduction, which plans of other operations ignore.
//
// The result is in buf, where the plan says. The 16-bit types are rounded after every
// addition, and a mean is divided at the end. An all-to-all replaces part p of buf, which
// is for rank p, by what rank p sends; its length must be a multiple of the ranks.
//
// An error that is not a [*Failure] is about the arguments, and the rank has sent nothing.
func RunPlan[T Element](ctx context.Context, g Group, p *plan.Plan, buf []T, op ReduceOp) error {
	return runPlan(ctx, g, p, TypeOf[T](), op, bytesOf(bufferOf(buf), TypeOf[T]()))
}

// bytesOf is the memory of a buffer.
func bytesOf(b Buffer, t Type) []byte { return unsafe.Slice((*byte)(b.Data), b.Len*t.Size()) }

// elementsOf is memory as a buffer.
func elementsOf(data []byte, t Type) Buffer {
	return Buffer{Data: unsafe.Pointer(unsafe.SliceData(data)), Len: len(data) / t.Size()}
}

// runPlan is RunPlan without the type.
func runPlan(ctx context.Context, g Group, p *plan.Plan, t Type, op ReduceOp, data []byte) error {
	r := runner{g: g, plan: p, typ: t, op: op, n: len(data) / t.Size()}
	if err := r.check(elementsOf(data, t)); err != nil {
		return fmt.Errorf("group: %w", err)
	}
	if op == Mean {
		r.op = Sum
	}
	for chunk := range p.Slots {
		if chunk < p.Chunks {
			begin, end := plan.Cut(r.n, p.Chunks, chunk)
			r.slots = append(r.slots, data[begin*t.Size():end*t.Size()])
		} else {
			r.slots = append(r.slots, make([]byte, len(r.slots[0]))) // the first chunk is the largest
		}
	}
	steps := p.Steps[g.Rank()]
	for len(steps) > 0 {
		end := 1
		for end < len(steps) && steps[end].Round == steps[0].Round {
			end++
		}
		if err := r.round(ctx, steps[:end]); err != nil {
			return err
		}
		steps = steps[end:]
	}
	if p.Op == plan.AllToAll {
		for chunk := range p.Chunks {
			copy(r.slots[chunk], r.slots[p.Chunks+chunk])
		}
	}
	if op == Mean && r.reduces() && (p.Op != plan.Reduce || g.Rank() == p.Root) {
		for chunk := range p.Chunks {
			if p.Op != plan.ReduceScatter || chunk/(p.Chunks/p.Ranks) == g.Rank() {
				divideBy(t, r.slots[chunk], p.Ranks)
			}
		}
	}
	return nil
}

// runner is a rank's run of a plan.
type runner struct {
	g     Group
	plan  *plan.Plan
	typ   Type
	op    ReduceOp
	n     int // elements of the data
	slots [][]byte
}

func (r *runner) check(buf Buffer) error {
	p := r.plan
	if p == nil {
		return fmt.Errorf("no plan for %d ranks: make one with plan.New", r.g.Size())
	}
	if p.Ranks != r.g.Size() {
		return fmt.Errorf("the plan is for %d ranks, and the group has %d: make one for these", p.Ranks, r.g.Size())
	}
	if _, err := p.Count(r.n, r.typ.Size()); err != nil {
		return err
	}
	if p.Op == plan.AllToAll && r.n%p.Chunks != 0 {
		return fmt.Errorf("%d elements for an all-to-all of %d ranks: want a multiple of the plan's %d chunks", r.n,
			p.Ranks, p.Chunks)
	}
	if r.reduces() {
		call := Call{Kind: KindAllReduce, Type: r.typ, Op: r.op, In: buf, Out: buf}
		return call.Check(r.g.Rank(), r.g.Size())
	}
	return nil
}

func (r *runner) reduces() bool {
	return r.plan.Op == plan.Reduce || r.plan.Op == plan.AllReduce || r.plan.Op == plan.ReduceScatter
}

// view is the part of a slot that a chunk takes.
func (r *runner) view(slot, chunk int) []byte {
	begin, end := plan.Cut(r.n, r.plan.Chunks, chunk)
	return r.slots[slot][:(end-begin)*r.typ.Size()]
}

// round exchanges the messages of a round and then takes its local steps.
func (r *runner) round(ctx context.Context, steps []plan.Step) error {
	var pending []*Pending
	messages := r.messages(steps)
	for _, m := range messages {
		call := Call{Kind: KindRecv, Type: r.typ, Peer: m.peer, Out: elementsOf(m.memory(), r.typ)}
		if m.action == plan.Send {
			call.Kind, call.In, call.Out = KindSend, call.Out, Buffer{}
		}
		pending = append(pending, r.g.Start(ctx, call))
	}
	if err := WaitAll(pending...); err != nil {
		return err
	}
	for _, m := range messages {
		if m.action == plan.Receive {
			m.unpack()
		}
	}
	for _, s := range steps {
		to := r.view(s.Slot, s.Chunk)
		switch s.Action {
		case plan.Add:
			a, b := elementsOf(to, r.typ), elementsOf(r.view(s.From, s.Chunk), r.typ)
			reduce(r.typ, r.op, pointers{a.Data}, pointers{a.Data, b.Data}, a.Len)
		case plan.Copy:
			copy(to, r.view(s.From, s.Chunk))
		}
	}
	return nil
}

// message is all that a rank sends to a peer, or receives from it, in a round.
type message struct {
	action plan.Action
	peer   int
	chunks [][]byte
	staged []byte // to receive several chunks together
}

// messages puts the sends to each peer together, and the receives.
func (r *runner) messages(steps []plan.Step) []*message {
	var messages []*message
next:
	for _, s := range steps {
		if s.Action != plan.Send && s.Action != plan.Receive {
			continue
		}
		chunk := r.view(s.Slot, s.Chunk)
		for _, m := range messages {
			if m.action == s.Action && m.peer == s.Peer {
				m.chunks = append(m.chunks, chunk)
				continue next
			}
		}
		messages = append(messages, &message{action: s.Action, peer: s.Peer, chunks: [][]byte{chunk}})
	}
	return messages
}

// memory is what to send, or where to receive.
func (m *message) memory() []byte {
	if len(m.chunks) == 1 {
		return m.chunks[0]
	}
	if m.action == plan.Send {
		return slices.Concat(m.chunks...)
	}
	size := 0
	for _, chunk := range m.chunks {
		size += len(chunk)
	}
	m.staged = make([]byte, size)
	return m.staged
}

// unpack puts what was received into its slots.
func (m *message) unpack() {
	rest := m.staged
	for _, chunk := range m.chunks {
		rest = rest[copy(chunk, rest):]
	}
}

// divideBy divides every element, in float32 where those have 16 bits.
func divideBy(t Type, data []byte, by int) {
	b := elementsOf(data, t)
	switch t {
	case Float32:
		divide(at[float32](b.Data, 0, b.Len), by)
	case Float64:
		divide(at[float64](b.Data, 0, b.Len), by)
	case BFloat16, Float16:
		wide := make([]float32, b.Len)
		widen(t, wide, at[uint16](b.Data, 0, b.Len))
		divide(wide, by)
		narrow(t, at[uint16](b.Data, 0, b.Len), wide)
	}
}
