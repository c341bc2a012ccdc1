package step

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// clock has the times at which operations start and end. An operation starts when what it waits for is over: the pass
// before it in the list, what makes that which it uses ([Flow].After), and what is before it in its stream. A message
// moves when it is sent and its receive has begun, operations along an axis when all ranks of a group are there.
type clock struct {
	*checked
	costs Costs
	times [][]times // by rank and position
	path  []place   // operations whose start is asked for, each because of the one before
	err   error     // the first
}

// times are those of an operation.
type times struct {
	start, end float64
	over       float64 // when what waits for it goes on: of a message when it has moved and is received
	state      byte    // of start
	ended      bool
	with       []place // the operations that it is one of: a send and its receive, or those of a group along an axis
}

// States of a start.
const (
	asked = iota + 1
	known
)

// play gives operations their times. Errors are ranks that do not do the same, or wait for each other.
func (c *checked) play(costs Costs) (*clock, error) {
	k := &clock{checked: c, costs: costs}
	longest := 0
	for _, list := range c.Ranks {
		k.times, longest = append(k.times, make([]times, len(list))), max(longest, len(list))
	}
	if err := k.meet(); err != nil {
		return nil, err
	}
	for i := range longest { // of all ranks at a time, so that none is asked for far ahead of the others
		for r, list := range c.Ranks {
			if i < len(list) && k.err == nil {
				k.over(place{int32(r), int32(i)})
			}
		}
	}
	return k, k.err
}

// meeting is the nth operation that several ranks make together: a message, or what a group does along an axis.
type meeting struct {
	axis          string
	from, to, nth int // the ranks of a message; of a group the first, and how many
}

// meet finds which operations of ranks are one: the first from one rank to another is the first that this receives from
// it, and so on; likewise those along an axis.
func (c *clock) meet() error {
	with := map[meeting][]place{}
	var all []meeting
	for r, list := range c.Ranks {
		count, groups := map[meeting]int{}, map[string][]int{}
		for i, op := range list {
			m := meeting{from: r, to: op.Peer}
			switch op.Kind {
			case Send:
			case Recv:
				m = meeting{from: op.Peer, to: r}
			case Gather, Reduce:
				if groups[op.Axis] == nil {
					a, _ := c.Axis(op.Axis)
					if groups[op.Axis] = a.Group(r); len(a.Groups) > 0 && len(groups[op.Axis]) != a.Size {
						return c.errorAt(r, i, "the rank is in no group of axis %s: add it to one", op.Axis)
					}
				}
				m = meeting{axis: op.Axis, from: groups[op.Axis][0], to: len(groups[op.Axis])}
			default:
				continue
			}
			if op.isMessage() && op.Peer == r {
				return c.errorAt(r, i, "a rank needs no message to itself: remove it")
			}
			count[m]++
			if m.nth = count[m]; with[m] == nil {
				all = append(all, m)
			}
			with[m] = append(with[m], place{int32(r), int32(i)})
		}
	}
	for _, m := range all {
		ops, size := with[m], 2
		if m.axis != "" {
			size = m.to
		}
		for k := range size {
			other := "nothing"
			if k < len(ops) {
				if c.at(ops[k]).with = ops; c.op(ops[0]).meets(c.op(ops[k])) {
					continue
				}
				other = fmt.Sprintf("%v (rank %d, position %d)", c.Text(c.op(ops[k])), ops[k].rank, ops[k].at)
			}
			return c.errorAt(int(ops[0].rank), int(ops[0].at), "the other side has %s in its place: "+
				"let all that communicate do the same in the same order", other)
		}
	}
	return nil
}

// meets tells whether two operations can be one of several ranks.
func (op Op) meets(other Op) bool {
	if op.isMessage() {
		return op.message() == other.message()
	}
	if op.What != Activation {
		op.Micro, other.Micro = 0, 0
	}
	return op == other
}

func (c *clock) op(at place) Op { return c.Ranks[at.rank][at.at] }

func (c *clock) at(at place) *times { return &c.times[at.rank][at.at] }

// start is when an operation starts.
func (c *clock) start(at place) float64 {
	t, flow := c.at(at), c.flows[at.rank]
	if t.state == asked && c.err == nil {
		c.err = c.cycle(at)
	}
	if t.state != 0 {
		return t.start
	}
	t.state = asked
	c.path = append(c.path, at)
	wait := func(j int) {
		if j >= 0 && c.err == nil {
			t.start = max(t.start, c.over(place{at.rank, int32(j)}))
		}
	}
	if wait(flow.pass[at.at]); !c.op(at).isMessage() { // several messages may be under way at a time
		wait(flow.stream[at.at])
	}
	for _, j := range flow.After[at.at] {
		wait(j)
	}
	c.path, t.state = c.path[:len(c.path)-1], known
	return t.start
}

// over is when what waits for an operation goes on.
func (c *clock) over(at place) float64 {
	t, op := c.at(at), c.op(at)
	switch {
	case t.ended:
	case op.isMessage():
		c.message(t.with)
	case t.with == nil:
		t.finish(c.start(at) + c.took(at.rank, op))
	default:
		for _, to := range t.with {
			latest := 0.0
			for _, from := range t.with {
				latest = max(latest, c.start(from)+c.link(from, to))
			}
			c.at(to).finish(latest + c.costs.Time(c.op(to)))
		}
	}
	return t.over
}

func (t *times) finish(end float64) { t.end, t.over, t.ended = end, end, true }

// message has a message move. Those of a stream come in order. The buffer of a send is free when the receive has begun
// as well.
func (c *clock) message(ends []place) {
	send, recv := ends[0], ends[1]
	if c.op(send).Kind == Recv {
		send, recv = recv, send
	}
	moved := c.start(send) + c.link(send, recv) + c.costs.Time(c.op(send))
	over := max(moved, c.start(recv))
	if j := c.flows[send.rank].stream[send.at]; j >= 0 {
		before := place{send.rank, int32(j)}
		over, moved = max(over, c.over(before)), max(moved, c.at(before).end)
	}
	c.at(recv).finish(over)
	c.at(send).finish(over)
	c.at(send).end = moved
}

func (c *clock) link(from, to place) float64 {
	link, err := c.costs.Between(int(from.rank), int(to.rank))
	c.err = cmp.Or(c.err, err)
	return link
}

// took is the time that an operation takes by itself.
func (c *clock) took(rank int32, op Op) (sum float64) {
	if op.Kind != Update || op.Unit >= 0 {
		return c.costs.Time(op)
	}
	for _, op.Unit = range c.flows[rank].units {
		sum += c.costs.Time(op)
	}
	return sum
}

// cycle is the error for ranks that wait for each other: the path has led to an operation a second time.
func (c *clock) cycle(again place) error {
	path := slices.Clone(c.path[slices.Index(c.path, again):])
	for path[0].rank == path[len(path)-1].rank { // begin where it comes to another rank
		path = append(path[1:], path[0])
	}
	var text []string
	at := path[0] // the last operation of its rank that is not beside the passes
	for i, p := range path {
		if p.rank != at.rank || !c.op(p).beside() {
			at = p
		}
		if next := path[(i+1)%len(path)]; next.rank != p.rank {
			text = append(text, fmt.Sprintf("rank %d is at %v and waits for %v of rank %d", p.rank, c.Text(c.op(at)),
				c.Text(c.op(next)), next.rank))
		}
	}
	first := slices.Index(text, slices.Min(text))
	return fmt.Errorf("step: ranks wait for each other for ever: %s; change the order of one of them",
		strings.Join(append(text[first:], text[:first]...), "; "))
}
