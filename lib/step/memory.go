package step

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Sizes are in bytes. A list has a value for each block or unit, or one that stands for all; an empty one is zeros.
type Sizes struct {
	Input []int64 // of a block, for a micro-batch; also of its gradient
	Part  []int64 // a device's part of it, where devices share it between the passes
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
	return [...][]int64{Input: s.Input, OutGrad: s.Input, Part: s.Part, Saved: s.Saved, Left: s.Left, Full: s.Whole,
		Sum: s.Sum, Reduced: s.Reduced, Fresh: s.Resident, States: s.States, resident: s.Resident}
}

// of is the size of a value.
func (s Sizes) of(v Value) int64 {
	at := v.Block
	switch {
	case v.Held == OutGrad: // that of the next block's input
		at++
	case v.Held >= Full:
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
	case communication, v.Held == Fresh:
		return &b.Communication
	case v.Held < Full:
		return &b.Activations
	case v.Held == Full:
		return &b.Gathered
	case v.Held == States:
		return &b.States
	}
	return &b.Gradients
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
	c, err := p.sized(s)
	if err != nil {
		return nil, err
	}
	all := make([]Memory, len(c.Ranks))
	for r := range c.Ranks {
		all[r] = c.memory(r, s)
	}
	return all, nil
}

// sized checks a plan and sizes for it.
func (p *Plan) sized(s Sizes) (*checked, error) {
	c, err := p.checked()
	for h, list := range s.lists() {
		count := len(p.Blocks)
		if Held(h) >= Full {
			count = len(p.Units)
		}
		err = cmp.Or(err, checkList(fmt.Sprintf("the list %v of Sizes", list), list, count, math.MaxInt64))
	}
	return c, err
}

func (c *checked) memory(r int, s Sizes) (m Memory) {
	flow, list := c.flows[r], c.Ranks[r]
	changes := make([]Bytes, len(list)+1) // at the start of each operation
	hold := func(v Value, communication bool, from, to int) {
		if from > to {
			return
		}
		*changes[from].kind(v, communication) += s.of(v)
		if to < len(list) {
			*changes[to+1].kind(v, communication) -= s.of(v)
		}
	}
	moved, hosted := map[int]bool{}, map[int]bool{} // units whose states the list moves, or the host has
	shards := map[int][]*made{}                     // sums over ranks, by unit
	for _, m := range flow.all {
		if m.Held == Reduced {
			shards[m.Unit] = append(shards[m.Unit], m)
		}
		moved[m.Unit], hosted[m.Unit] = moved[m.Unit] || m.Held == States, hosted[m.Unit] || m.Held == Fresh
		made := max(m.at, 0)
		from, to := made, max(m.pass, 0) // in use by the passes; before and behind it is only received or sent
		switch {
		case m.never:
			continue
		case m.Held == Reduced && list[made].Kind == Reduce && list[made].Axis != c.Units[m.Unit].Shard:
			from, made = flow.Done[made]+1, flow.Done[made]+1 // in place of the sum, until then
		case list[made].Kind == Recv && m.at >= 0:
			from = min(flow.Done[made], len(list)-1)
		}
		if to = max(to, from); m.Held != Input && m.Held != OutGrad || m.Host {
			to = max(m.ends, from-1)
		}
		hold(m.Value, true, made, from-1)
		hold(m.Value, false, from, to)
		hold(m.Value, true, to+1, m.ends)
	}
	for i, op := range list { // a shard that is added to another has an array of its own until the rank waits for it
		if op.Kind == Reduce && op.What == Gradient && op.Axis == c.Units[op.Unit].Shard &&
			slices.ContainsFunc(shards[op.Unit], func(m *made) bool { return m.at < i && m.ends >= i }) {
			hold(Value{Held: Reduced, Unit: op.Unit}, false, i, flow.Done[i])
		}
	}
	for _, u := range flow.units {
		changes[0].Parameters += s.of(Value{Held: resident, Unit: u})
		if hosted[u] || !moved[u] {
			hold(Value{Held: States, Unit: u, Host: hosted[u]}, false, 0, len(list))
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
