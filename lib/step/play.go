package step

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// clock computes when operations start and end. An operation starts when all that it waits for is over: the pass before
// it, what makes the values that it uses ([Flow].After), and the previous operation of its stream. A message is sent
// when the receive has begun, too; a collective starts when all ranks of the group are there.
type clock struct {
	*checked
	costs Costs
	times [][]times // by rank and position
	path  []place   // operations whose start is being computed, each for the one before
	err   error     // the first
}

type times struct {
	start, end float64
	over       float64 // when operations that wait for it go on; for a message, when it is sent and received
	state      byte    // of start: 0, asked or known
	ended      bool
	with       []place // the other end of a message, or all members of a collective
}

const (
	asked = iota + 1
	known
)

// play computes the times. Errors are ranks that do not communicate the same, and deadlocks.
func (c *checked) play(costs Costs) (*clock, error) {
	k := &clock{checked: c, costs: costs}
	longest := 0
	for _, list := range c.Ranks {
		k.times, longest = append(k.times, make([]times, len(list))), max(longest, len(list))
	}
	if err := k.meet(); err != nil {
		return nil, err
	}
	for i := range longest { // position by position over all ranks, which bounds the depth of recursion
		for r, list := range c.Ranks {
			if i < len(list) && k.err == nil {
				k.over(place{int32(r), int32(i)})
			}
		}
	}
	return k, k.err
}

// meeting is the nth message between two ranks, or the nth collective of a group.
type meeting struct {
	axis          string
	from, to, nth int // sender and receiver; of a group, its first rank and its size
}

// meet matches sends with receives, and the members of collectives, by their order.
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
				return c.errorAt(r, i, "the rank sends a message to itself: remove it")
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
				"give both sides the same operations in the same order", other)
		}
	}
	return nil
}

// meets reports whether two ranks' operations can be one message or collective.
func (op Op) meets(other Op) bool {
	if op.isMessage() {
		return op.Message() == other.Message()
	}
	if op.What != Activation {
		op.Micro, other.Micro = 0, 0
	}
	return op == other
}

func (c *clock) op(at place) Op { return c.Ranks[at.rank][at.at] }

func (c *clock) at(at place) *times { return &c.times[at.rank][at.at] }

// start returns when an operation starts.
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

// over returns when operations that wait for this one go on.
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

// message computes the times of a message. Messages of a stream arrive in order. A send's buffer is free once the
// receive has begun, too.
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

// took returns the time that an operation takes by itself.
func (c *clock) took(rank int32, op Op) (sum float64) {
	if op.Kind != Update || op.Unit >= 0 {
		return c.costs.Time(op)
	}
	for _, op.Unit = range c.flows[rank].units {
		sum += c.costs.Time(op)
	}
	return sum
}

// cycle returns the error of a deadlock: the path has reached an operation a second time.
func (c *clock) cycle(again place) error {
	path := slices.Clone(c.path[slices.Index(c.path, again):])
	for path[0].rank == path[len(path)-1].rank { // begin where it enters another rank
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
	return fmt.Errorf("step: deadlock: %s; change the order of one of them",
		strings.Join(append(text[first:], text[:first]...), "; "))
}
