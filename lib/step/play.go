package step

import (
	"fmt"
	"slices"
	"strings"
)

// clock plays the lists of all ranks, and has the times at which operations start and end. A message moves when it is
// sent and its receive has begun, operations along an axis when all ranks of a group are there.
type clock struct {
	*Plan
	costs      Costs
	flows      []*Flow
	next       []int       // of each rank, the position of what it begins next
	now        []float64   // when it may
	start, end [][]float64 // of each operation
	missing    [][]int32   // of each operation, how many it waits for, and itself to begin: of the rank,
	meetings   [][]*meeting
	then       [][][]int32 // of each operation, those that wait for it
	before     [][]int32   // of each operation, that before it in its stream, or -1
	todo       []int       // ranks that may go on
	ready      []place     // operations that only wait for other ranks
	units      [][]int     // of each rank, once they are asked for
	err        error
}

// meeting is an operation of several ranks: a send and its receive, or what a group does along an axis.
type meeting struct {
	ops     []place
	missing int
}

// ended is the missing of an operation beside the passes that has ended.
const ended = -1

// play plays a plan with its messages. Errors are ranks that do not do the same, or wait for each other.
func play(p *Plan, flows []*Flow, costs Costs) (*clock, error) {
	c := &clock{Plan: p, costs: costs, flows: flows, next: make([]int, len(p.Ranks)), now: make([]float64, len(p.Ranks)),
		units: make([][]int, len(p.Ranks))}
	for r, list := range p.Ranks {
		c.add(r, list)
	}
	if err := c.meet(); err != nil {
		return nil, err
	}
	for r := range p.Ranks {
		c.todo = append(c.todo, r)
	}
	for len(c.todo)+len(c.ready) > 0 && c.err == nil {
		if n := len(c.ready); n > 0 {
			at := c.ready[n-1]
			c.ready = c.ready[:n-1]
			c.arrive(at)
			continue
		}
		n := len(c.todo)
		r := c.todo[n-1]
		c.todo = c.todo[:n-1]
		c.goOn(r)
	}
	for r, list := range p.Ranks {
		if c.err == nil && c.next[r] < len(list) {
			return nil, c.cycle(r)
		}
	}
	return c, c.err
}

// add enters a rank's list.
func (c *clock) add(r int, list []Op) {
	n := len(list)
	missing, then, before := make([]int32, n), make([][]int32, n), make([]int32, n)
	last := map[lane]int32{}
	for i, op := range list {
		before[i] = -1
		for _, j := range c.flows[r].After[i] {
			missing[i]++
			then[j] = append(then[j], int32(i))
		}
		if op.beside() {
			missing[i]++ // to begin
			if j, ok := last[op.lane()]; ok {
				before[i] = j
				missing[i]++
				then[j] = append(then[j], int32(i))
			}
			last[op.lane()] = int32(i)
		}
	}
	c.missing, c.then, c.before = append(c.missing, missing), append(c.then, then), append(c.before, before)
	c.start, c.end = append(c.start, make([]float64, n)), append(c.end, make([]float64, n))
	c.meetings = append(c.meetings, make([]*meeting, n))
}

// meet finds which operations of ranks are one: the first from one rank to another is the first that this receives from
// it, and so on; likewise those along an axis.
func (c *clock) meet() error {
	type way struct{ from, to int }
	messages := map[way]*[2][]place{} // what is sent, and what is received
	var ways []way
	group := map[string][][]int{}
	for _, a := range c.Axes {
		group[a.Name] = make([][]int, len(c.Ranks))
		for _, g := range a.Groups {
			for _, r := range g {
				group[a.Name][r] = g
			}
		}
	}
	along := map[string][][]place{} // by axis and rank
	for r, list := range c.Ranks {
		for i, op := range list {
			at := place{int32(r), int32(i)}
			switch op.Kind {
			case Send, Recv:
				w, end := way{r, op.Peer}, 0
				if op.Kind == Recv {
					w, end = way{op.Peer, r}, 1
				}
				if messages[w] == nil {
					messages[w] = &[2][]place{}
					ways = append(ways, w)
				}
				messages[w][end] = append(messages[w][end], at)
			case Gather, Reduce:
				if along[op.Axis] == nil {
					along[op.Axis] = make([][]place, len(c.Ranks))
				}
				along[op.Axis][r] = append(along[op.Axis][r], at)
			}
		}
	}
	for _, w := range ways {
		if err := c.join(messages[w][0], messages[w][1]); err != nil {
			return err
		}
	}
	for _, a := range c.Axes {
		lists := along[a.Name]
		for r, list := range lists {
			if g := group[a.Name][r]; g == nil && len(a.Groups) > 0 && len(list) > 0 {
				return c.errorAt(r, int(list[0].at), "the rank is in no group of axis %s: add it to one", a.Name)
			} else if len(g) > 0 && g[0] == r {
				var all [][]place
				for _, q := range g {
					all = append(all, lists[q])
				}
				if err := c.join(all...); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (c *clock) op(at place) Op { return c.Ranks[at.rank][at.at] }

// join makes meetings of the first operations of lists, of the second, and so on.
func (c *clock) join(lists ...[]place) error {
	for _, list := range lists {
		for k := range max(len(list), len(lists[0])) {
			if k < len(list) && k < len(lists[0]) && c.op(list[k]).meets(c.op(lists[0][k])) {
				continue
			}
			a, b := lists[0], list
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
	meetings := make([]meeting, len(lists[0]))
	for _, list := range lists {
		for k, at := range list {
			m := &meetings[k]
			m.ops, m.missing = append(m.ops, at), m.missing+1
			c.meetings[at.rank][at.at] = m
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

// goOn has a rank go on until it waits.
func (c *clock) goOn(r int) {
	for list := c.Ranks[r]; c.next[r] < len(list); c.next[r]++ {
		i := c.next[r]
		op := list[i]
		c.start[r][i] = max(c.start[r][i], c.now[r])
		if op.beside() {
			c.count(place{int32(r), int32(i)})
			continue
		}
		if c.missing[r][i] > 0 {
			return
		}
		c.end[r][i] = c.start[r][i] + c.took(r, op)
		c.now[r] = c.end[r][i]
	}
}

// took is the time that a pass takes.
func (c *clock) took(r int, op Op) (sum float64) {
	if op.Kind != Update {
		return c.costs.Took(op)
	}
	if op.Unit < 0 && c.units[r] == nil {
		c.units[r] = c.UnitsOn(r)
	}
	for _, u := range op.units(c.units[r]) {
		op.Unit = u
		sum += c.costs.Took(op)
	}
	return sum
}

// count notes that an operation waits for one less.
func (c *clock) count(at place) {
	c.missing[at.rank][at.at]--
	if c.missing[at.rank][at.at] > 0 {
		return
	}
	if c.op(at).beside() {
		c.ready = append(c.ready, at)
	} else if c.next[at.rank] == int(at.at) {
		c.todo = append(c.todo, int(at.rank))
	}
}

// arrive has an operation take place, when all ranks that it needs are there.
func (c *clock) arrive(at place) {
	m := c.meetings[at.rank][at.at]
	if m == nil { // of this rank alone
		c.finish(at, c.start[at.rank][at.at]+c.costs.Took(c.op(at)))
		return
	}
	if m.missing--; m.missing > 0 {
		return
	}
	if send, recv := m.ops[0], m.ops[len(m.ops)-1]; c.op(send).Kind == Send {
		moved := c.arrival(send, recv) + c.costs.Took(c.op(send))
		if before := c.before[send.rank][send.at]; before >= 0 { // messages come in order
			moved = max(moved, c.end[send.rank][before])
		}
		end := max(moved, c.start[recv.rank][recv.at])
		c.finish(send, end) // its buffer is free when the receive has begun as well
		c.finish(recv, end)
		c.end[send.rank][send.at] = moved
		return
	}
	for _, to := range m.ops {
		latest := 0.0
		for _, from := range m.ops {
			latest = max(latest, c.arrival(from, to))
		}
		c.finish(to, latest+c.costs.Took(c.op(to)))
	}
}

// arrival is when a rank has what another gives.
func (c *clock) arrival(from, to place) float64 {
	link, err := c.costs.Between(int(from.rank), int(to.rank))
	if err != nil {
		c.err = err
	}
	return c.start[from.rank][from.at] + link
}

// finish ends an operation beside the passes.
func (c *clock) finish(at place, end float64) {
	r, i := at.rank, at.at
	c.end[r][i], c.missing[r][i] = end, ended
	message := c.op(at).Kind == Send || c.op(at).Kind == Recv
	for _, j := range c.then[r][i] {
		if !message || c.before[r][j] != i { // messages may be under way at the same time
			c.start[r][j] = max(c.start[r][j], end)
		}
		c.count(place{r, j})
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
		at := place{int32(r), int32(c.next[r])}
		for range maxOps { // what it waits for, and what that waits for, to what has not begun
			cause, ok := c.cause(at)
			if !ok {
				break
			}
			at = cause
		}
		path = append(path, fmt.Sprintf("rank %d is at %v and waits for %v of rank %d",
			r, c.Text(c.Ranks[r][c.next[r]]), c.Text(c.op(at)), at.rank))
		r = int(at.rank)
	}
}

// cause is what an operation that has begun waits for; false for one that has not begun.
func (c *clock) cause(at place) (place, bool) {
	r, i := at.rank, at.at
	if int(i) > c.next[r] {
		return at, false
	}
	for _, j := range append(slices.Clone(c.flows[r].After[i]), int(c.before[r][i])) {
		if j >= 0 && c.missing[r][j] != ended {
			return place{r, int32(j)}, true
		}
	}
	if m := c.meetings[r][i]; m != nil {
		for _, other := range m.ops {
			if other != at && c.missing[other.rank][other.at] > 0 {
				return other, true
			}
		}
	}
	return at, false
}
