package step

import (
	"fmt"
	"slices"
	"strings"
)

// clock has the times at which operations start and end. An operation starts when what it waits for is over: the pass
// before it in the list, what makes that which it uses ([Flow].After), and what is before it in its stream. A message
// moves when it is sent and its receive has begun, operations along an axis when all ranks of a group are there.
type clock struct {
	*Plan
	costs Costs
	flows []*Flow
	times [][]times // by rank and position
	path  []place   // operations whose start is asked for, each because of the one before
	err   error     // the first
}

// times are those of an operation.
type times struct {
	start, end   float64
	over         float64 // when what waits for it goes on: of a message when it has moved and is received
	state        byte    // of start
	ended        bool
	pass, stream int32   // positions of the last operation before it that is not beside the passes, and in its stream
	with         []place // the operations that it is one of: a send and its receive, or those of a group along an axis
}

// States of a start.
const (
	asked = iota + 1
	known
)

// play plays a plan with its messages. Errors are ranks that do not do the same, or wait for each other.
func play(p *Plan, flows []*Flow, costs Costs) (*clock, error) {
	c := &clock{Plan: p, costs: costs, flows: flows}
	longest := 0
	for _, list := range p.Ranks {
		times, last, pass := make([]times, len(list)), map[lane]int32{}, int32(-1)
		for i, op := range list {
			times[i].pass, times[i].stream = pass, -1
			if j, ok := last[op.lane()]; ok && op.beside() {
				times[i].stream = j
			}
			if last[op.lane()] = int32(i); !op.beside() {
				pass = int32(i)
			}
		}
		c.times, longest = append(c.times, times), max(longest, len(list))
	}
	if err := c.meet(); err != nil {
		return nil, err
	}
	for i := range longest { // of all ranks at a time, so that none is asked for far ahead of the others
		for r, list := range p.Ranks {
			if i < len(list) && c.err == nil {
				c.over(place{int32(r), int32(i)})
			}
		}
	}
	return c, c.err
}

// channel is what several ranks do one after another: messages from one rank to another, or what a group, of which from
// is the first, does along an axis.
type channel struct {
	axis     string
	from, to int
}

// meet finds which operations of ranks are one: the first from one rank to another is the first that this receives from
// it, and so on; likewise those along an axis.
func (c *clock) meet() error {
	groups, lists := c.groups(), map[channel]map[int][]place{}
	var channels []channel
	for r, list := range c.Ranks {
		for i, op := range list {
			var ch channel
			switch {
			case op.isMessage() && op.Peer == r:
				return c.errorAt(r, i, "a rank needs no message to itself: remove it")
			case op.Kind == Send:
				ch = channel{from: r, to: op.Peer}
			case op.Kind == Recv:
				ch = channel{from: op.Peer, to: r}
			case op.Kind == Gather, op.Kind == Reduce:
				group := groups[op.Axis][r]
				if len(group) == 0 {
					return c.errorAt(r, i, "the rank is in no group of axis %s: add it to one", op.Axis)
				}
				ch = channel{axis: op.Axis, from: group[0]}
			default:
				continue
			}
			if lists[ch] == nil {
				lists[ch] = map[int][]place{}
				channels = append(channels, ch)
			}
			lists[ch][r] = append(lists[ch][r], place{int32(r), int32(i)})
		}
	}
	for _, ch := range channels {
		ranks := []int{ch.from, ch.to}
		if ch.axis != "" {
			ranks = groups[ch.axis][ch.from]
		}
		if err := c.join(ranks, lists[ch]); err != nil {
			return err
		}
	}
	return nil
}

func (c *clock) op(at place) Op { return c.Ranks[at.rank][at.at] }

func (c *clock) at(at place) *times { return &c.times[at.rank][at.at] }

// join makes one of the first operations of ranks, of the second, and so on.
func (c *clock) join(ranks []int, lists map[int][]place) error {
	first := lists[ranks[0]]
	for _, r := range ranks {
		a, b := first, lists[r]
		if len(b) > len(a) {
			a, b = b, a
		}
		for k := range a {
			if k < len(b) && c.op(a[k]).meets(c.op(b[k])) {
				continue
			}
			other := "nothing"
			if k < len(b) {
				other = fmt.Sprintf("%v (rank %d, position %d)", c.Text(c.op(b[k])), b[k].rank, b[k].at)
			}
			return c.errorAt(int(a[k].rank), int(a[k].at), "the other side has %s in its place: "+
				"let all that communicate do the same in the same order", other)
		}
	}
	for k := range first {
		var with []place
		for _, r := range ranks {
			with = append(with, lists[r][k])
		}
		for _, at := range with {
			c.at(at).with = with
		}
	}
	return nil
}

// meets tells whether two operations can be one of several ranks.
func (op Op) meets(other Op) bool {
	if op.Kind == Send || op.Kind == Recv {
		return op.message() == other.message()
	}
	if op.What != Activation {
		op.Micro, other.Micro = 0, 0
	}
	return op == other
}

// start is when an operation starts.
func (c *clock) start(at place) float64 {
	t := c.at(at)
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
	if wait(int(t.pass)); !c.op(at).isMessage() { // several messages may be under way at a time
		wait(int(t.stream))
	}
	for _, j := range c.flows[at.rank].After[at.at] {
		wait(j)
	}
	c.path, t.state = c.path[:len(c.path)-1], known
	return t.start
}

func (op Op) isMessage() bool { return op.Kind == Send || op.Kind == Recv }

// over is when what waits for an operation goes on.
func (c *clock) over(at place) float64 {
	t, op := c.at(at), c.op(at)
	switch {
	case t.ended:
	case op.isMessage():
		c.message(t.with[0], t.with[1])
	case t.with == nil:
		t.finish(c.start(at) + c.took(int(at.rank), op))
	default:
		for _, to := range t.with {
			latest := 0.0
			for _, from := range t.with {
				latest = max(latest, c.start(from)+c.link(from, to))
			}
			c.at(to).finish(latest + c.costs.Took(c.op(to)))
		}
	}
	return t.over
}

func (t *times) finish(end float64) { t.end, t.over, t.ended = end, end, true }

// message has a message move. Those of a stream come in order. The buffer of a send is free when the receive has begun
// as well.
func (c *clock) message(send, recv place) {
	s := c.at(send)
	moved := c.start(send) + c.link(send, recv) + c.costs.Took(c.op(send))
	over := max(moved, c.start(recv))
	if s.stream >= 0 {
		before := place{send.rank, s.stream}
		over = max(over, c.over(before))
		moved = max(moved, c.at(before).end)
	}
	c.at(recv).finish(over)
	s.finish(over)
	s.end = moved
}

func (c *clock) link(from, to place) float64 {
	link, err := c.costs.Between(int(from.rank), int(to.rank))
	if c.err == nil {
		c.err = err
	}
	return link
}

// took is the time that an operation takes by itself.
func (c *clock) took(r int, op Op) (sum float64) {
	if op.Kind != Update {
		return c.costs.Took(op)
	}
	units := []int{op.Unit}
	if op.Unit < 0 {
		units = c.UnitsOn(r)
	}
	for _, u := range units {
		op.Unit = u
		sum += c.costs.Took(op)
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
