package step

import (
	"fmt"
	"slices"
)

// Sizes are in bytes. A list has a value for each block or unit, or one that stands for all; an empty one is zeros.
type Sizes struct {
	Input []int64 // of a block, for a micro-batch; also of its gradient
	Saved []int64 // what a block saves in its forward pass for a micro-batch
	Left  []int64 // what its input gradient leaves for its weight gradient

	Whole    []int64 // a unit's full parameters, as the passes use them
	Sum      []int64 // the sum of its gradients before they are reduced
	Reduced  []int64 // what a rank has of them then
	Resident []int64 // what a rank always has of its parameters, besides Whole where that is gathered
	States   []int64 // what it has of the optimizer's states
}

// resident is what a rank always has of a unit's parameters.
const resident = States + 1

// lists are those of values, by [Held].
func (s Sizes) lists() [resident + 1][]int64 {
	return [...][]int64{Input: s.Input, OutGrad: s.Input, Saved: s.Saved, Left: s.Left, Whole: s.Whole, Sum: s.Sum,
		Reduced: s.Reduced, States: s.States, resident: s.Resident}
}

func (s Sizes) check(blocks, units int) error {
	for h, list := range s.lists() {
		n := blocks
		if Held(h) >= Whole {
			n = units
		}
		if len(list) > 1 && len(list) != n || len(list) > 0 && slices.Min(list) < 0 {
			return fmt.Errorf("step: Sizes has the list %v: give %d values from 0, or one for all", list, n)
		}
	}
	return nil
}

// of is the size of a value.
func (s Sizes) of(v Value) int64 {
	at := v.Block
	switch {
	case v.Held == OutGrad: // that of the next block's input
		at++
	case v.Held >= Whole:
		at = v.Unit
	}
	return of(s.lists()[v.Held], at, 0)
}

// Bytes are what a rank holds, by kind.
type Bytes struct {
	Parameters    int64 // what it always has of them
	Gathered      int64 // full parameters of sharded units
	Gradients     int64
	States        int64 // the optimizer's
	Activations   int64 // inputs, what is saved for backward passes, and gradients of these
	Communication int64 // messages that are being sent or received, and which no pass uses meanwhile
	Host          int64 // in the host's memory
}

// Total is the sum of all that is in the device's memory.
func (b Bytes) Total() int64 {
	return b.Parameters + b.Gathered + b.Gradients + b.States + b.Activations + b.Communication
}

// kinds are its fields.
func (b *Bytes) kinds() []*int64 {
	return []*int64{&b.Parameters, &b.Gathered, &b.Gradients, &b.States, &b.Activations, &b.Communication, &b.Host}
}

// kind is the field of a value, which may be under way between ranks.
func (b *Bytes) kind(v Value, communication bool) *int64 {
	switch {
	case v.Host:
		return &b.Host
	case communication:
		return &b.Communication
	case v.Held < Whole:
		return &b.Activations
	}
	return map[Held]*int64{Whole: &b.Gathered, Sum: &b.Gradients, Reduced: &b.Gradients, States: &b.States}[v.Held]
}

// Memory is what a rank holds in a step.
type Memory struct {
	Levels []Bytes // while each operation of its list runs, with what that uses and makes
	Peak   Bytes   // the most of each kind
	Total  int64   // the most of all together in the device's memory
	At     int     // the first operation at which that is so
}

// Memory predicts what each rank holds, as [Plan.Flow] has it: a value from the operation that makes it to the last
// that needs it, and what is under way beside the passes until they wait for it. What an operation needs only while it
// runs is not in it. Errors are those of [Plan.Check], and sizes that are none. Give a plan with its messages, or they
// are those of [Plan.WithMessages], in which case Levels are those of that plan.
func (p *Plan) Memory(s Sizes) ([]Memory, error) {
	c, err := p.checked()
	if err != nil {
		return nil, err
	}
	if err := s.check(len(p.Blocks), len(p.Units)); err != nil {
		return nil, err
	}
	all := make([]Memory, len(c.Ranks))
	for r := range c.Ranks {
		all[r] = c.memory(r, s)
	}
	return all, nil
}

func (c *checked) memory(r int, s Sizes) (m Memory) {
	flow, list := c.flows[r], c.Ranks[r]
	changes := make([]Bytes, len(list)+1) // at the start of each operation
	hold := func(v Value, communication bool, from, to int) {
		*changes[from].kind(v, communication) += s.of(v)
		if to < len(list) {
			*changes[to+1].kind(v, communication) -= s.of(v)
		}
	}
	moved := map[int]bool{} // units whose states the list moves: others stay
	for _, l := range flow.lives(list) {
		moved[l.Unit] = moved[l.Unit] || l.Held == States
		if op := list[l.made]; l.Held == Reduced && op.Kind == Reduce && op.Axis != c.Units[l.Unit].Shard {
			l.used = flow.Done[l.made] + 1 // in place of the sum, until then
			hold(l.Value, false, l.used, max(l.unused, l.used-1))
			continue
		}
		hold(l.Value, true, l.made, l.used-1)
		hold(l.Value, false, l.used, l.unused)
		hold(l.Value, true, l.unused+1, l.ends)
	}
	for _, u := range c.UnitsOn(r) {
		if changes[0].Parameters += s.of(Value{Held: resident, Unit: u}); !moved[u] {
			changes[0].States += s.of(Value{Held: States, Unit: u})
		}
	}
	now := Bytes{}
	for i := range list {
		for k, kind := range now.kinds() {
			*kind += *changes[i].kinds()[k]
			*m.Peak.kinds()[k] = max(*m.Peak.kinds()[k], *kind)
		}
		if m.Levels = append(m.Levels, now); now.Total() > m.Total {
			m.Total, m.At = now.Total(), i
		}
	}
	return m
}

// life is a value on a rank, by positions in its list.
type life struct {
	Value
	made, ends   int // the first and the last at which it is there
	used, unused int // the same for the passes; before and behind it is only received or sent
}

// lives returns the values of a list. What the operation that makes it ends as well is never there.
func (f *Flow) lives(list []Op) (all []life) {
	open := map[Value][]life{}
	for u := range f.Resident {
		v := Value{Held: Whole, Unit: u}
		open[v] = []life{{Value: v}}
	}
	end := func(v Value, at int) {
		if len(open[v]) == 0 { // it was there before
			open[v] = []life{{Value: v}}
		}
		l := open[v][0]
		if l.Held != Input && l.Held != OutGrad || l.Host {
			l.unused = at
		}
		l.ends = at
		all, open[v] = append(all, l), open[v][1:]
	}
	for i, op := range list {
		for _, v := range f.Uses[i] {
			if n := len(open[v]); n > 0 && op.Kind.Pass() {
				open[v][n-1].unused = i
			}
		}
		needed := func(v Value) bool { return !slices.Contains(f.Unmade[i], v) }
		for _, v := range f.Makes[i] {
			l := life{Value: v, made: i, used: i, unused: i}
			if op.Kind == Recv {
				l.used = min(f.Done[i], len(list)-1)
				l.unused = l.used
			}
			if needed(v) {
				open[v] = append(open[v], l)
			}
		}
		for _, v := range f.Ends[i] {
			if needed(v) {
				end(v, i) // the oldest
			}
		}
	}
	for v, left := range open { // at the end, or for the next step
		for range left {
			end(v, len(list)-1)
		}
	}
	return all
}
