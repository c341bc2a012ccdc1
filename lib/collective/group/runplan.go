package group

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/shardbook/shardbook/lib/collective/plan"
)

// RunPlan runs a plan over a group, by nothing but sends and receives: as slow as
// they are, but every message can be seen and counted. All ranks call it with the
// same plan, as long a buf and the same reduction, which plans of other operations
// ignore. The result lies in buf, where the plan says; in it the 16-bit types are
// rounded after every addition, and a mean is divided at the end.
//
// A plan of an all-to-all is run by RunAllToAllPlan. An error that is no *Failure is
// about the arguments, and the rank has sent nothing.
func RunPlan[T Element](ctx context.Context, g Group, p *plan.Plan, buf []T, op Op) error {
	r, err := newRunner(g, p, buf, op)
	if err != nil {
		return err
	}
	if p.Op == plan.AllToAll {
		return fmt.Errorf("group: the plan is of an %v, which has an in and an out: use RunAllToAllPlan", p.Op)
	}
	if err := r.run(ctx); err != nil {
		return err
	}
	if op == Mean && r.reduces() {
		first, end := 0, p.Chunks
		switch {
		case p.Op == plan.Reduce && g.Rank() != p.Root:
			return nil
		case p.Op == plan.ReduceScatter:
			first, end = partChunks(p, g.Rank())
		}
		begin, _ := plan.Cut(len(buf), p.Chunks, first)
		_, stop := plan.Cut(len(buf), p.Chunks, end-1)
		divideBy(buf[begin:stop], p.Ranks)
	}
	return nil
}

// RunAllToAllPlan runs the plan of an all-to-all over a group, as RunPlan does. Part p
// of rank r's in becomes part r of rank p's out. The parts of in are cut by plan.Cut;
// out has Size parts as long as this rank's own part of in.
func RunAllToAllPlan[T Element](ctx context.Context, g Group, p *plan.Plan, in, out []T) error {
	r, err := newRunner(g, p, in, Sum)
	if err != nil {
		return err
	}
	if p.Op != plan.AllToAll {
		return fmt.Errorf("group: the plan is of %v, not of an all-to-all: use RunPlan", p.Op)
	}
	first, end := partChunks(p, g.Rank())
	offset := 0
	for range p.Ranks {
		for chunk := first; chunk < end; chunk++ {
			size := r.size(chunk)
			if offset+size <= len(out) {
				r.slots = append(r.slots, out[offset:offset+size])
			}
			offset += size
		}
	}
	if offset != len(out) {
		return fmt.Errorf("group: out has %d elements; want %d, as rank %d gets of an all-to-all of %d", len(out),
			offset, g.Rank(), len(in))
	}
	if call := AllToAllCall(in, out); overlap(call.In, call.Out, call.Type.Size()) {
		return errors.New("group: in and out overlap: give the all-to-all two buffers")
	}
	return r.run(ctx)
}

// partChunks is which chunks are a rank's part.
func partChunks(p *plan.Plan, rank int) (first, end int) {
	return rank * p.Chunks / p.Ranks, (rank + 1) * p.Chunks / p.Ranks
}

// runner is a rank's run of a plan.
type runner[T Element] struct {
	g     Group
	plan  *plan.Plan
	op    Op
	n     int   // elements of the data
	slots [][]T // as far as they are made
}

func newRunner[T Element](g Group, p *plan.Plan, buf []T, op Op) (*runner[T], error) {
	if p == nil {
		return nil, fmt.Errorf("group: no plan for %d ranks: make one with plan.New", g.Size())
	}
	if p.Ranks != g.Size() {
		return nil, fmt.Errorf("group: the plan is for %d ranks, and the group has %d: make one for so many",
			p.Ranks, g.Size())
	}
	if _, err := p.Count(len(buf), TypeOf[T]().Size()); err != nil {
		return nil, fmt.Errorf("group: %w", err)
	}
	r := &runner[T]{g: g, plan: p, op: op, n: len(buf)}
	if r.reduces() {
		call := AllReduceCall(buf, op)
		if err := call.Check(g.Rank(), g.Size()); err != nil {
			return nil, fmt.Errorf("group: %w", err)
		}
	}
	if op == Mean {
		r.op = Sum
	}
	for chunk := range p.Chunks {
		begin, end := plan.Cut(len(buf), p.Chunks, chunk)
		r.slots = append(r.slots, buf[begin:end])
	}
	return r, nil
}

func (r *runner[T]) reduces() bool {
	return r.plan.Op == plan.Reduce || r.plan.Op == plan.AllReduce || r.plan.Op == plan.ReduceScatter
}

// size is how many elements a chunk has.
func (r *runner[T]) size(chunk int) int {
	begin, end := plan.Cut(r.n, r.plan.Chunks, chunk)
	return end - begin
}

// run takes the rank's steps, round by round.
func (r *runner[T]) run(ctx context.Context) error {
	for len(r.slots) < r.plan.Slots {
		r.slots = append(r.slots, make([]T, r.size(0))) // the first chunk is the largest
	}
	steps := r.plan.Steps[r.g.Rank()]
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
	return nil
}

// round exchanges the messages of a round and then takes its local steps.
func (r *runner[T]) round(ctx context.Context, steps []plan.Step) error {
	var pending []*Pending
	messages := r.messages(steps)
	for _, m := range messages {
		if m.action == plan.Send {
			pending = append(pending, r.g.Start(ctx, SendCall(m.packed(), m.peer)))
		} else {
			pending = append(pending, r.g.Start(ctx, RecvCall(m.room(), m.peer)))
		}
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
			from := r.view(s.From, s.Chunk)
			a, b := unsafe.Pointer(unsafe.SliceData(to)), unsafe.Pointer(unsafe.SliceData(from))
			reduce(TypeOf[T](), r.op, pointers{a}, pointers{a, b}, len(to))
		case plan.Copy:
			copy(to, r.view(s.From, s.Chunk))
		}
	}
	return nil
}

// view is the part of a slot that a chunk takes.
func (r *runner[T]) view(slot, chunk int) []T { return r.slots[slot][:r.size(chunk)] }

// message is all that goes to a peer, or comes from it, in a round.
type message[T Element] struct {
	action plan.Action
	peer   int
	chunks [][]T
	staged []T // what is sent or received if the chunks do not lie together
}

// messages puts the sends to each peer together, and the receives.
func (r *runner[T]) messages(steps []plan.Step) []*message[T] {
	var messages []*message[T]
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
		messages = append(messages, &message[T]{action: s.Action, peer: s.Peer, chunks: [][]T{chunk}})
	}
	return messages
}

// packed is what to send.
func (m *message[T]) packed() []T {
	if len(m.chunks) == 1 {
		return m.chunks[0]
	}
	rest := m.stage()
	for _, chunk := range m.chunks {
		rest = rest[copy(rest, chunk):]
	}
	return m.staged
}

// room is where to receive.
func (m *message[T]) room() []T {
	if len(m.chunks) == 1 {
		return m.chunks[0]
	}
	return m.stage()
}

// stage makes room for all chunks together.
func (m *message[T]) stage() []T {
	size := 0
	for _, chunk := range m.chunks {
		size += len(chunk)
	}
	m.staged = make([]T, size)
	return m.staged
}

// unpack puts what was received into its slots.
func (m *message[T]) unpack() {
	rest := m.staged
	for _, chunk := range m.chunks {
		rest = rest[copy(chunk, rest):]
	}
}

// divideBy divides every element, in float32 where those have 16 bits.
func divideBy[T Element](buf []T, by int) {
	data, n := unsafe.Pointer(unsafe.SliceData(buf)), len(buf)
	switch t := TypeOf[T](); t {
	case Float32:
		divide(at[float32](data, 0, n), by)
	case Float64:
		divide(at[float64](data, 0, n), by)
	case BFloat16, Float16:
		wide := make([]float32, n)
		widen(t, wide, at[uint16](data, 0, n))
		divide(wide, by)
		narrow(t, at[uint16](data, 0, n), wide)
	}
}
