package step

import (
	"errors"
	"fmt"
	"slices"
)

// WithMessages returns a plan of passes with the communication that it needs:
//
//   - A Send follows the pass that makes a message's value.
//   - The Recv begins one pass, or pair, before the pass that needs it, so that they overlap. Earlier messages from the
//     same rank are received before it, even if they are needed later.
//   - A Wait for the Send, which frees its buffer, stands where the rank has to wait for an answer anyway: before its
//     next pass that depends on the receiver's use of the message. Without such a pass nothing waits before the end.
//   - A unit that several ranks of a pipeline have, as in DualPipe, gets an axis "unit-0" that joins these ranks, and a
//     Reduce along it after the last gradient before each update. Call WithMessages before [Plan.Replicate] then.
//
// Blocks of one rank exchange no messages. It returns an error if the plan has messages already, or if passes are
// missing, repeated or in the wrong order; [Plan.Check] finds deadlocks.
func (p *Plan) WithMessages() (*Plan, error) {
	if p.hasMessages() {
		return nil, errors.New("step: the plan has messages already")
	}
	replicas, err := p.passes()
	if err != nil {
		return nil, err
	}
	return p.withMessages(replicas), nil
}

// lowering adds messages to a plan.
type lowering struct {
	*Plan
	*links
	lanes          map[[2]int32][]message // by sender and receiver, in the order of sending
	before, behind [][][]Op               // what to insert, by rank and position
	pairs          [][]Pair
}

// message has the positions of the passes that make and need a message's value.
type message struct{ made, needed int32 }

func (p *Plan) withMessages(replicas int) *Plan {
	l := &lowering{Plan: p.Clone(), links: p.linked(true), lanes: map[[2]int32][]message{}}
	for r, list := range p.Ranks {
		l.before, l.behind = append(l.before, make([][]Op, len(list))), append(l.behind, make([][]Op, len(list)))
		l.pairs = append(l.pairs, p.Pairs(r))
		for i, op := range list {
			if to := l.to[r][i]; to != nowhere && int(to.rank) != r {
				ends := [2]int32{int32(r), to.rank}
				l.lanes[ends] = append(l.lanes[ends], message{int32(i), to.at})
				l.behind[r][i] = []Op{op.moved(Send, to.rank)}
			}
		}
	}
	for r := range p.Ranks {
		l.receive(int32(r))
	}
	for ends, lane := range l.lanes {
		l.wait(ends, lane)
	}
	for u, have := range p.owners() {
		if replicas == 1 && len(have) > 1 && !p.joined(u, have) {
			a := Axis{Name: fmt.Sprint("unit-", u), Groups: [][]int{have}, Size: len(have)}
			l.Axes, l.Units[u].Reduce = append(l.Axes, a), append(slices.Clone(l.Units[u].Reduce), a.Name)
			for _, r := range have {
				l.reduce(r, Op{Kind: Reduce, What: Gradient, Unit: u, Axis: a.Name})
			}
		}
	}
	for r := range l.Ranks {
		l.Insert(r, func(i int, _ Op) (before, behind []Op) { return l.before[r][i], l.behind[r][i] })
	}
	return l.Plan
}

// moved returns the Send or Recv of what a pass makes or needs.
func (op Op) moved(kind Kind, peer int32) Op {
	moved := Op{Kind: kind, What: Activation, Block: op.Block, Micro: op.Micro, Peer: int(peer)}
	if op.Kind != Forward {
		moved.What = Gradient
	}
	return moved
}

// receive inserts a rank's receives.
func (l *lowering) receive(r int32) {
	list, before := l.Ranks[r], -1 // position of the previous pass, or of one in the previous pair
	begun := map[int32]int{}       // received messages, by sender
	for i, op := range list {
		if !op.Kind.Pass() {
			continue
		}
		if from := l.from[r][i]; from != nowhere && from.rank != r {
			lane, at := l.lanes[[2]int32{from.rank, r}], before
			if before < 0 {
				at = i
			}
			for ; begun[from.rank] < len(lane) && lane[begun[from.rank]].made <= from.at; begun[from.rank]++ {
				recv := list[lane[begun[from.rank]].needed].moved(Recv, from.rank)
				l.before[r][at] = append(l.before[r][at], recv)
			}
		}
		if i+1 >= l.pairs[r][i].To {
			before = i
		}
	}
}

// wait inserts the waits for a rank's sends to another, where the other sends something back.
func (l *lowering) wait(ends [2]int32, lane []message) {
	back := l.lanes[[2]int32{ends[1], ends[0]}]
	for _, m := range lane {
		answer, _ := slices.BinarySearchFunc(back, m.needed+1,
			func(b message, at int32) int { return int(b.made - at) })
		if answer == len(back) || back[answer].needed <= m.made { // the ranks would deadlock
			continue
		}
		if in := l.pairs[ends[0]][back[answer].needed]; in.To == 0 || int(m.made) < in.From { // else, too
			wait := l.Ranks[ends[0]][m.made].moved(Wait, 0)
			wait.Of = Send
			at := &l.before[ends[0]][back[answer].needed]
			*at = append(*at, wait)
		}
	}
}

// reduce inserts a Reduce after the last gradient before each update, or after its reduction along other axes.
func (l *lowering) reduce(rank int, reduce Op) {
	last := -1
	for i, op := range l.Ranks[rank] {
		switch {
		case (op.Kind == Backward || op.Kind == WeightGrad) && slices.Contains(l.Blocks[op.Block].Units, reduce.Unit),
			op.Kind == Reduce && op.What == Gradient && op.Unit == reduce.Unit:
			last = i
		case op.Kind.updates() && (op.Unit < 0 || op.Unit == reduce.Unit) && last >= 0:
			l.behind[rank][last] = append(l.behind[rank][last], reduce)
			last = -1
		}
	}
}

// place is an operation's rank and its position in the rank's list.
type place struct{ rank, at int32 }

// nowhere stands for an operation that does not exist.
var nowhere = place{-1, -1}

// takes is the value that a Forward, Backward or InputGrad needs from another block, or that a message carries to its
// receiver; gives is the value that a pass makes for another block, or that is sent.
func (op Op) takes() Value {
	if op.Kind == Forward || op.What == Activation {
		return Value{Held: Input, Block: op.Block, Micro: op.Micro}
	}
	return Value{Held: OutGrad, Block: op.Block, Micro: op.Micro}
}

func (op Op) gives() Value {
	v := op.takes()
	if v.Held == Input {
		v.Block++
	} else {
		v.Block--
	}
	return v
}

// Message returns the value that a Send or Recv carries.
func (op Op) Message() Value {
	if op.Kind == Send {
		return op.gives()
	}
	return op.takes()
}

// links are the places of each operation's consumer (to) and producer (from), or nowhere.
type links struct{ to, from [][]place }

// linked matches passes, or messages, by the values that they exchange. A pass uses what its own rank makes, if it
// does. Among other ranks, the first producer belongs to the first consumer and so on: replicas have the same
// operations for other examples.
func (p *Plan) linked(passes bool) *links {
	gives, takes := map[Value][]place{}, map[Value][]place{}
	l := &links{}
	for r, list := range p.Ranks {
		none := slices.Repeat([]place{nowhere}, len(list))
		l.to, l.from = append(l.to, none), append(l.from, slices.Clone(none))
		for i, op := range list {
			at := place{int32(r), int32(i)}
			pass := passes && (op.Kind == Forward || op.Kind == Backward || op.Kind == InputGrad)
			if pass || !passes && op.Kind == Send {
				gives[op.gives()] = append(gives[op.gives()], at)
			}
			if pass || !passes && op.Kind == Recv {
				takes[op.takes()] = append(takes[op.takes()], at)
			}
		}
	}
	for v, from := range gives {
		to := takes[v]
		if passes { // both are in ascending order of ranks
			from = slices.DeleteFunc(from, func(g place) bool {
				k, ok := slices.BinarySearchFunc(to, g.rank, func(t place, r int32) int { return int(t.rank - r) })
				if ok {
					l.link(g, to[k])
				}
				return ok
			})
			to = slices.DeleteFunc(to, func(t place) bool { return l.from[t.rank][t.at] != nowhere })
		}
		for k := range min(len(from), len(to)) {
			l.link(from[k], to[k])
		}
	}
	return l
}

func (l *links) link(from, to place) { l.to[from.rank][from.at], l.from[to.rank][to.at] = to, from }

// peer is the rank of the other end of a message, or 0 if there is none.
func (l *links) peer(rank, at int) int {
	return int(max(0, l.to[rank][at].rank, l.from[rank][at].rank))
}
