package schedule

import "fmt"

// network is which action waits for which, whatever order the ranks do them in. Actions have numbers.
type network struct {
	actions []Action
	took    []float64
	needs   [][]need // of each action
	orders  [][]int  // the actions of each rank, in their order
}

// need is an action that must have ended, and the time that its result is under way.
type need struct {
	action int
	link   float64
}

// newNetwork numbers the actions of a schedule. An action that is there twice, or waits for one that is not there, is an
// error, and so are costs that are none.
func newNetwork(s Schedule, c Costs) (*network, error) {
	if err := c.check(s.Stages); err != nil {
		return nil, err
	}
	n := &network{orders: make([][]int, len(s.Ranks))}
	at := map[Action]int{}
	var rank []int
	for r, actions := range s.Ranks {
		for _, a := range actions {
			if _, twice := at[a]; twice && a.Pass != Update {
				return nil, fmt.Errorf("schedule: %v is there twice: leave one out", a)
			}
			at[a] = len(n.actions)
			n.orders[r] = append(n.orders[r], len(n.actions))
			n.actions, n.took, rank = append(n.actions, a), append(n.took, c.Took(a)), append(rank, r)
		}
	}
	n.needs = make([][]need, len(n.actions))
	for i, a := range n.actions {
		for _, choices := range inputs(s, a) {
			found := false
			for _, from := range choices {
				j, ok := at[from]
				if !ok {
					continue
				}
				link, err := c.link(rank[j], rank[i])
				if err != nil {
					return nil, err
				}
				n.needs[i] = append(n.needs[i], need{j, link})
				found = true
				break
			}
			if !found {
				return nil, fmt.Errorf("schedule: %v of rank %d waits for %v, which no rank does: add it", a, rank[i], choices[0])
			}
		}
	}
	return n, nil
}

// inputs are what an action waits for: of each list the one that the schedule has.
func inputs(s Schedule, a Action) (all [][]Action) {
	add := func(stage, microbatch int, passes ...Pass) {
		var choices []Action
		for _, p := range passes {
			choices = append(choices, Action{p, stage, microbatch})
		}
		all = append(all, choices)
	}
	from, ok := a.InputFrom(s.Stages)
	switch a.Pass {
	case Forward:
		if ok {
			add(from, a.Microbatch, Forward)
		}
	case Backward, InputGrad:
		add(a.Stage, a.Microbatch, Forward)
		if ok {
			add(from, a.Microbatch, Backward, InputGrad)
		}
	case WeightGrad:
		add(a.Stage, a.Microbatch, InputGrad)
	case Update: // all holders of the stage add up their gradients
		for m := max(0, a.Microbatch-s.Every+1); m <= a.Microbatch; m++ {
			add(a.Stage, m, Backward, WeightGrad)
		}
	}
	return all
}

// clock computes when the actions of a network run. It may play many orders of the same actions.
type clock struct {
	*network
	start, end []float64
	done       []bool
	waiting    [][]int // by action: the ranks that wait for it
	next       []int   // by rank: position of what it does next
	todo       []int   // ranks that may go on
}

func newClock(n *network) *clock {
	count := len(n.actions)
	return &clock{network: n, start: make([]float64, count), end: make([]float64, count), done: make([]bool, count),
		waiting: make([][]int, count), next: make([]int, len(n.orders))}
}

// play starts each action when its rank is free and its inputs are there. It returns false if ranks wait for each other.
func (c *clock) play(orders [][]int) bool {
	clear(c.done)
	clear(c.next)
	c.todo = c.todo[:0]
	for r := range orders {
		c.todo = append(c.todo, r)
	}
	for i := range c.waiting {
		c.waiting[i] = c.waiting[i][:0]
	}
	played := 0
	for len(c.todo) > 0 {
		r := c.todo[len(c.todo)-1]
		c.todo = c.todo[:len(c.todo)-1]
		for c.next[r] < len(orders[r]) {
			i := orders[r][c.next[r]]
			begin, missing := c.ready(i)
			if missing >= 0 {
				c.waiting[missing] = append(c.waiting[missing], r)
				break
			}
			if c.next[r] > 0 {
				begin = max(begin, c.end[orders[r][c.next[r]-1]])
			}
			c.start[i], c.end[i], c.done[i] = begin, begin+c.took[i], true
			c.todo = append(c.todo, c.waiting[i]...)
			c.next[r]++
			played++
		}
	}
	return played == len(c.actions)
}

// ready is when the inputs of an action are there, or else which of them has not been made.
func (c *clock) ready(i int) (at float64, missing int) {
	for _, n := range c.needs[i] {
		if !c.done[n.action] {
			return 0, n.action
		}
		at = max(at, c.end[n.action]+n.link)
	}
	return at, -1
}

// span is the time from the start of a rank's first action to the end of its last.
func (c *clock) span(order []int) float64 {
	if len(order) == 0 {
		return 0
	}
	return c.end[order[len(order)-1]] - c.start[order[0]]
}
