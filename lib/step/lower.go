package step

import (
	"errors"
	"fmt"
	"slices"
)

// WithMessages returns the plan with the messages between ranks, which it must not have yet, and with what ranks must
// do together besides:
//
//   - A Send follows the pass that makes a message.
//   - The Recv is begun one pass before the one that needs it, so that the transfer goes on beside that; with it those
//     of all messages that come before it on the way from that rank, be they needed later.
//   - A Wait for the Send, behind which its buffer is free, stands where the rank has to wait anyway: before its next
//     pass that uses what the receiver has made after it used the message. Where there is none nobody waits before the
//     end.
//   - A unit that several ranks of a pipeline have, as in DualPipe, gets an axis that joins these, "unit-0", and a
//     Reduce along it behind the last gradient before each update.
//
// Between blocks of one rank there is no message. Errors are those of passes that are missing, twice or in the wrong
// order; whether the ranks come to an end is for [Plan.Check] to say.
func (p *Plan) WithMessages() (*Plan, error) {
	if p.hasMessages() {
		return nil, errors.New("step: the plan has messages already")
	}
	x, err := p.index()
	if err != nil {
		return nil, err
	}
	return p.withMessages(x), nil
}

// message is what one rank sends another.
type message struct {
	send, recv   Op
	made, needed int32 // positions of the passes that make and need it
}

// lowering adds messages to a plan.
type lowering struct {
	*Plan
	x *index
	// lanes has the messages from one rank to another, in the order in which they are sent; slots says at which index of
	// its lane what each pass makes is.
	lanes  map[[2]int32][]message
	slots  [][]int32
	begun  map[[2]int32]int // of each lane, how many receives are begun
	before [][][]Op         // by rank and position: what comes before an operation,
	behind [][][]Op         // and behind it
}

func (p *Plan) withMessages(x *index) *Plan {
	q := *p
	l := &lowering{Plan: &q, x: x, lanes: map[[2]int32][]message{}, begun: map[[2]int32]int{}}
	for _, list := range p.Ranks {
		l.before, l.behind = append(l.before, make([][]Op, len(list)+1)), append(l.behind, make([][]Op, len(list)))
		l.slots = append(l.slots, make([]int32, len(list)))
	}
	for r, list := range p.Ranks {
		for i, op := range list {
			l.send(op, int32(r), int32(i))
		}
	}
	for r := range p.Ranks {
		l.receive(r)
	}
	for ends, lane := range l.lanes {
		l.wait(ends, lane)
	}
	l.join()
	q.Ranks = make([][]Op, len(p.Ranks))
	for r, list := range p.Ranks {
		for i, op := range list {
			q.Ranks[r] = append(append(append(q.Ranks[r], l.before[r][i]...), op), l.behind[r][i]...)
		}
	}
	return &q
}

// send enters what a pass makes for another rank.
func (l *lowering) send(op Op, r, i int32) {
	to, ok := l.x.output(op, int(r))
	if !ok || to.rank == r {
		return
	}
	m := message{made: i, needed: to.at,
		send: Op{Kind: Send, What: Activation, Block: op.Block, Micro: op.Micro, Peer: int(to.rank)},
		recv: Op{Kind: Recv, What: Activation, Block: op.Block + 1, Micro: op.Micro, Peer: int(r)}}
	if op.Kind != Forward {
		m.send.What, m.recv.What, m.recv.Block = Gradient, Gradient, op.Block-1
	}
	ends := [2]int32{r, to.rank}
	l.slots[r][i] = int32(len(l.lanes[ends]))
	l.lanes[ends] = append(l.lanes[ends], m)
	l.behind[r][i] = append(l.behind[r][i], m.send)
}

// receive begins a rank's receives.
func (l *lowering) receive(r int) {
	before := -1 // position of the pass before
	for i, op := range l.Ranks[r] {
		if !op.Kind.Pass() {
			continue
		}
		if from, ok := l.x.input(op, r); ok && int(from.rank) != r {
			ends, at := [2]int32{from.rank, int32(r)}, max(before, 0)
			if before < 0 {
				at = i
			}
			for last := int(l.slots[from.rank][from.at]); l.begun[ends] <= last; l.begun[ends]++ {
				l.before[r][at] = append(l.before[r][at], l.lanes[ends][l.begun[ends]].recv)
			}
		}
		before = i
	}
}

// wait has a rank wait for what it sends another, where that has an answer.
func (l *lowering) wait(ends [2]int32, lane []message) {
	back := l.lanes[[2]int32{ends[1], ends[0]}]
	for _, m := range lane {
		answer, _ := slices.BinarySearchFunc(back, m.needed+1, func(b message, at int32) int { return int(b.made - at) })
		if answer < len(back) && back[answer].needed > m.made { // else the ranks wait for each other
			at := &l.before[ends[0]][back[answer].needed]
			w := m.send
			w.Kind, w.Of, w.Peer = Wait, Send, 0
			*at = append(*at, w)
		}
	}
}

// join reduces the gradients of units that several ranks of a pipeline have.
func (l *lowering) join() {
	for u, groups := range l.sharers() {
		if len(groups) == 0 {
			continue
		}
		a := Axis{Name: fmt.Sprintf("unit-%d", u), Groups: groups, Size: len(groups[0])}
		l.Axes = append(slices.Clone(l.Axes), a)
		l.Units = slices.Clone(l.Units)
		l.Units[u].Reduce = append(slices.Clone(l.Units[u].Reduce), a.Name)
		for _, r := range slices.Concat(groups...) {
			l.reduce(r, Op{Kind: Reduce, What: Gradient, Unit: u, Axis: a.Name})
		}
	}
}

// reduce puts a Reduce behind the last gradient before each update, or what is reduced along other axes.
func (l *lowering) reduce(rank int, reduce Op) {
	last := -1
	for i, op := range l.Ranks[rank] {
		switch {
		case (op.Kind == Backward || op.Kind == WeightGrad) && slices.Contains(l.Blocks[op.Block].Units, reduce.Unit),
			op.Kind == Reduce && op.What == Gradient && op.Unit == reduce.Unit:
			last = i
		case op.Kind == Update && (op.Unit < 0 || op.Unit == reduce.Unit):
			if last < 0 {
				l.before[rank][i] = append(l.before[rank][i], reduce)
			} else {
				l.behind[rank][last] = append(l.behind[rank][last], reduce)
			}
			last = -1
		}
	}
}

// sharers returns, for each unit, the groups of ranks of the same replica that have it; none where each is alone, or
// where an axis of the unit joins them.
func (l *lowering) sharers() [][][]int {
	groups := make([][][]int, len(l.Units)) // by unit and replica
	for r, list := range l.Ranks {
		first := slices.IndexFunc(list, func(op Op) bool { return op.Kind == Forward })
		if first < 0 {
			continue
		}
		replica := l.x.replica(list[first], r)
		for _, u := range l.UnitsOn(r) {
			if groups[u] == nil {
				groups[u] = make([][]int, l.x.replicas)
			}
			groups[u][replica] = append(groups[u][replica], r)
		}
	}
	for u, unit := range l.Units {
		if len(groups[u]) == 0 || len(groups[u][0]) < 2 {
			groups[u] = nil
		}
		for _, name := range unit.Reduce {
			a, _ := l.Axis(name)
			if groups[u] != nil && slices.Contains(a.Group(groups[u][0][0]), groups[u][0][1]) {
				groups[u] = nil
			}
		}
	}
	return groups
}
