package schedule

import (
	"fmt"
	"strings"
)

// player runs programs on links with no buffers: a message moves when it has been sent and asked for, and so have those
// before it between the two ranks.
type player struct {
	s        Schedule
	x        *index
	programs [][]Op
	at       []int // of each rank, the next operation
	lanes    map[[2]int]*lane
	arrived  map[Action]bool // messages that are where they are needed, until they are used
	holders  [][]int
	there    map[Action]int // of each update, how many ranks have come to it
	joined   []bool         // of each rank, whether it is among those
}

// lane is the messages from one rank to another: what is sent and what is asked for, in the order of each side, less what
// has moved.
type lane struct{ sent, asked []Action }

// play runs the schedule's programs to the end, or tells which ranks wait for each other. A rank runs as far as it can; one
// that waits is tried again when something comes that it may wait for, so the work is proportional to the operations.
func (s Schedule) play(x *index) error {
	programs := s.programs(x)
	p := &player{s: s, x: x, programs: programs, at: make([]int, len(programs)), lanes: map[[2]int]*lane{},
		arrived: map[Action]bool{}, holders: s.Holders(), there: map[Action]int{}, joined: make([]bool, len(programs))}
	var todo []int
	for r := range programs {
		todo = append(todo, r)
	}
	for len(todo) > 0 {
		r := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for p.at[r] < len(programs[r]) {
			woken, ok := p.step(r, programs[r][p.at[r]])
			todo = append(todo, woken...)
			if !ok {
				break
			}
			p.at[r]++
		}
	}
	for r := range programs {
		if p.at[r] < len(programs[r]) {
			return p.cycle(r)
		}
	}
	return nil
}

// step tries a rank's operation. It tells whether that is done, and which other ranks may go on because of it.
func (p *player) step(r int, op Op) (woken []int, ok bool) {
	switch op.Kind {
	case Recv:
		l := p.lane(op.Peer, r)
		l.asked = append(l.asked, op.Action)
		p.move(l)
		return nil, true // the rank itself waits for the message, and does so later
	case Send:
		l := p.lane(r, op.Peer)
		l.sent = append(l.sent, op.Action)
		if p.move(l) {
			woken = append(woken, op.Peer)
		}
		return woken, true
	}
	if op.Action.Pass == Update {
		return p.update(r, op.Action)
	}
	if from, ok := p.x.input(p.s, op.Action); ok && int(from.rank) != r {
		message := p.s.Ranks[from.rank][from.at]
		if !p.arrived[message] {
			return nil, false
		}
		delete(p.arrived, message)
	}
	return nil, true
}

func (p *player) lane(from, to int) *lane {
	l := p.lanes[[2]int{from, to}]
	if l == nil {
		l = &lane{}
		p.lanes[[2]int{from, to}] = l
	}
	return l
}

// move moves the messages that can be, and tells whether there were any.
func (p *player) move(l *lane) (moved bool) {
	for len(l.sent) > 0 && len(l.asked) > 0 && l.sent[0] == l.asked[0] {
		p.arrived[l.sent[0]] = true
		l.sent, l.asked = l.sent[1:], l.asked[1:]
		moved = true
	}
	return moved
}

// update lets a rank update a stage when all ranks that have the stage are there.
func (p *player) update(r int, a Action) (woken []int, ok bool) {
	if !p.joined[r] {
		p.joined[r] = true
		p.there[a]++
		if p.there[a] == len(p.holders[a.Stage]) {
			woken = p.holders[a.Stage]
		}
	}
	if p.there[a] < len(p.holders[a.Stage]) {
		return nil, false
	}
	p.joined[r] = false
	return woken, true
}

// cycle is the error for ranks that wait for each other. Each that is stuck waits for one other, which is stuck too, since
// all actions are there: so following them leads into a cycle.
func (p *player) cycle(r int) error {
	var path []string
	seen := map[int]int{}
	for {
		if begin, ok := seen[r]; ok {
			return fmt.Errorf("schedule: ranks wait for each other for ever: %s; change the order of one of them",
				strings.Join(path[begin:], "; "))
		}
		seen[r] = len(path)
		a := p.programs[r][p.at[r]].Action
		where := fmt.Sprintf("rank %d is at %v and waits for ", r, a)
		if a.Pass == Update {
			for _, other := range p.holders[a.Stage] {
				if p.programs[other][p.at[other]].Action != a {
					path = append(path, where+fmt.Sprintf("%v of rank %d", a, other))
					r = other
					break
				}
			}
			continue
		}
		from, _ := p.x.input(p.s, a)
		path = append(path, where+fmt.Sprintf("%v of rank %d", p.s.Ranks[from.rank][from.at], from.rank))
		r = int(from.rank)
	}
}
