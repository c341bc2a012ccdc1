package step

import (
	"fmt"
	"slices"
	"strings"
)

// clock has the times at which operations start and end. An operation starts when what it waits for has ended: the pass
// before it in the list, what makes that which it uses ([Flow].After), and what is before it in its stream. A message
// moves when it is sent and its receive has begun, operations along an axis when all ranks of a group are there.
type clock struct {
	*Plan
	costs      Costs
	flows      []*Flow
	units      [][]int     // of each rank
	start, end [][]float64 // of each operation
	missing    [][]int     // how many operations each still waits for; ended where it has ended
	waits      [][]waits
	then       [][][]int // those that wait for it
	meetings   [][]*meeting
	ready      []place
}

// waits are the operations of the same rank that one waits for besides those of Flow.After; −1 is none.
type waits struct {
	pass   int // the last that is not beside the passes
	stream int // that before in its stream
}

// meeting is an operation of several ranks: a send and its receive, or what a group does along an axis.
type meeting struct {
	ops     []place
	missing int
}

const ended = -1

// play plays a plan with its messages. Errors are ranks that do not do the same, or wait for each other.
func play(p *Plan, flows []*Flow, costs Costs) (*clock, error) {
	c := &clock{Plan: p, costs: costs, flows: flows}
	for r, list := range p.Ranks {
		c.add(r, list)
	}
	if err := c.meet(); err != nil {
		return nil, err
	}
	for len(c.ready) > 0 {
		last := len(c.ready) - 1
		at := c.ready[last]
		c.ready = c.ready[:last]
		if err := c.arrive(at); err != nil {
			return nil, err
		}
	}
	for r, missing := range c.missing {
		if slices.ContainsFunc(missing, func(n int) bool { return n != ended }) {
			return nil, c.cycle(r)
		}
	}
	return c, nil
}

// add enters a rank's list.
func (c *clock) add(r int, list []Op) {
	n := len(list)
	missing, then, before := make([]int, n), make([][]int, n), make([]waits, n)
	last, pass := map[lane]int{}, -1
	for i, op := range list {
		before[i] = waits{pass, -1}
		if !op.beside() {
			pass = i
		} else if j, ok := last[op.lane()]; ok {
			before[i].stream = j
		}
		last[op.lane()] = i
		for _, j := range append([]int{before[i].pass, before[i].stream}, c.flows[r].After[i]...) {
			if j >= 0 {
				missing[i]++
				then[j] = append(then[j], i)
			}
		}
		if missing[i] == 0 {
			c.ready = append(c.ready, place{int32(r), int32(i)})
		}
	}
	c.missing, c.then, c.waits = append(c.missing, missing), append(c.then, then), append(c.waits, before)
	c.start, c.end = append(c.start, make([]float64, n)), append(c.end, make([]float64, n))
	c.meetings, c.units = append(c.meetings, make([]*meeting, n)), append(c.units, c.UnitsOn(r))
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
			switch op.Kind {
			case Send:
				ch = channel{from: r, to: op.Peer}
			case Recv:
				ch = channel{from: op.Peer, to: r}
			case Gather, Reduce:
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

// join makes meetings of the first operations of ranks, of the second, and so on.
func (c *clock) join(ranks []int, lists map[int][]place) error {
	meetings := make([]meeting, len(lists[ranks[0]]))
	for _, r := range ranks {
		a, b := lists[ranks[0]], lists[r]
		for k := range max(len(a), len(b)) {
			if k < len(a) && k < len(b) && c.op(a[k]).meets(c.op(b[k])) {
				m := &meetings[k]
				m.ops, m.missing = append(m.ops, b[k]), m.missing+1
				c.meetings[r][b[k].at] = m
				continue
			}
			if k >= len(a) {
				a, b = b, a
			}
			other := "nothing"
			if k < len(b) {
				other = fmt.Sprintf("%v (rank %d, position %d)", c.Text(c.op(b[k])), b[k].rank, b[k].at)
			}
			return c.errorAt(int(a[k].rank), int(a[k].at), "the other side has %s in its place: "+
				"let all that communicate do the same in the same order", other)
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

// took is the time that an operation takes by itself.
func (c *clock) took(r int, op Op) (sum float64) {
	if op.Kind != Update {
		return c.costs.Took(op)
	}
	for _, u := range op.units(c.units[r]) {
		op.Unit = u
		sum += c.costs.Took(op)
	}
	return sum
}

// arrive has an operation take place that waits for none of its rank, when all ranks that it needs are there.
func (c *clock) arrive(at place) error {
	m := c.meetings[at.rank][at.at]
	if m == nil { // of this rank alone
		c.finish(at, c.start[at.rank][at.at]+c.took(int(at.rank), c.op(at)))
		return nil
	}
	if m.missing--; m.missing > 0 {
		return nil
	}
	if c.op(m.ops[0]).Kind == Send {
		return c.message(m.ops[0], m.ops[1])
	}
	for _, to := range m.ops {
		latest := 0.0
		for _, from := range m.ops {
			link, err := c.costs.Between(int(from.rank), int(to.rank))
			if err != nil {
				return err
			}
			latest = max(latest, c.start[from.rank][from.at]+link)
		}
		c.finish(to, latest+c.costs.Took(c.op(to)))
	}
	return nil
}

// message has a message move. Those of a stream may be under way at the same time, and come in order.
func (c *clock) message(send, recv place) error {
	link, err := c.costs.Between(int(send.rank), int(recv.rank))
	moved := c.start[send.rank][send.at] + link + c.costs.Took(c.op(send))
	if before := c.waits[send.rank][send.at].stream; before >= 0 {
		moved = max(moved, c.end[send.rank][before])
	}
	end := max(moved, c.start[recv.rank][recv.at])
	c.finish(send, end) // its buffer is free when the receive has begun as well
	c.finish(recv, end)
	c.end[send.rank][send.at] = moved
	return err
}

// finish ends an operation.
func (c *clock) finish(at place, end float64) {
	r, i := at.rank, int(at.at)
	c.end[r][i], c.missing[r][i] = end, ended
	message := c.op(at).Kind == Send || c.op(at).Kind == Recv
	for _, j := range c.then[r][i] {
		if !message || c.waits[r][j].stream != i {
			c.start[r][j] = max(c.start[r][j], end)
		}
		if c.missing[r][j]--; c.missing[r][j] == 0 {
			c.ready = append(c.ready, place{r, int32(j)})
		}
	}
}

// cycle is the error for ranks that wait for each other.
func (c *clock) cycle(r int) error {
	var path []string
	seen := map[int]int{}
	for {
		if begin, ok := seen[r]; ok {
			return fmt.Errorf("step: ranks wait for each other for ever: %s; change the order of one of them",
				strings.Join(path[begin:], "; "))
		}
		seen[r] = len(path)
		first := 0 // pass that has not ended, or what is last
		for first < len(c.Ranks[r])-1 && (c.missing[r][first] == ended || c.Ranks[r][first].beside()) {
			first++
		}
		at := place{int32(r), int32(first)}
		for range maxOps { // what it waits for, and what that waits for, to what has not begun
			cause := c.cause(at)
			if cause == at {
				break
			}
			at = cause
		}
		path = append(path, fmt.Sprintf("rank %d is at %v and waits for %v of rank %d",
			r, c.Text(c.Ranks[r][first]), c.Text(c.op(at)), at.rank))
		r = int(at.rank)
	}
}

// cause is what an operation that has begun waits for; itself for one that has not begun.
func (c *clock) cause(at place) place {
	r, i := at.rank, at.at
	w := c.waits[r][i]
	if w.pass >= 0 && c.missing[r][w.pass] != ended {
		return at
	}
	for _, j := range append([]int{w.stream}, c.flows[r].After[i]...) {
		if j >= 0 && c.missing[r][j] != ended {
			return place{r, int32(j)}
		}
	}
	if m := c.meetings[r][i]; m != nil {
		for _, other := range m.ops {
			if other != at && c.missing[other.rank][other.at] > 0 {
				return other
			}
		}
	}
	return at
}
