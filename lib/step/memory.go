package step

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Sizes are the sizes of a plan's values in bytes. Each list has a value per block or per unit, or one for all; an
// empty list means zeros.
type Sizes struct {
	Input         []int64 // a block's input for a micro-batch, and its gradient
	Part          []int64 // a device's shard of the input: see residual.Partition
	Saved         []int64 // activations that a block saves for a micro-batch
	ForWeightGrad []int64 // what InputGrad computes for WeightGrad

	Full     []int64 // a unit's full parameters, in the type that the passes use
	Sum      []int64 // its gradients before they are reduced
	Reduced  []int64 // a rank's part of the reduced gradients
	Resident []int64 // parameters that a rank always holds, besides Full while that is gathered
	States   []int64 // a rank's part of the optimizer states
}

// resident stands for the parameters that a rank always holds.
const resident = States + 1

// lists returns the lists by [Held].
func (s Sizes) lists() [resident + 1][]int64 {
	return [...][]int64{Input: s.Input, OutGrad: s.Input, Part: s.Part, Saved: s.Saved, ForWeightGrad: s.ForWeightGrad,
		Full: s.Full, Sum: s.Sum, Reduced: s.Reduced, Fresh: s.Resident, States: s.States, resident: s.Resident}
}

func (s Sizes) of(v Value) int64 {
	at := v.Block
	switch {
	case v.Held == OutGrad: // it has the size of the next block's input
		at++
	case v.Held >= Full:
		at = v.Unit
	}
	return of(s.lists()[v.Held], at, 0)
}

// Bytes is the memory of a rank, by kind, in bytes.
type Bytes struct {
	Parameters    int64 // always there
	Gathered      int64 // full parameters of sharded units
	Gradients     int64
	States        int64 // of the optimizer
	Activations   int64 // inputs of blocks, saved activations and their gradients
	Communication int64 // messages that no pass uses while they are sent or received
	Host          int64 // in host memory
}

// Total is the memory on the device: all but Host.
func (b Bytes) Total() int64 {
	return b.Parameters + b.Gathered + b.Gradients + b.States + b.Activations + b.Communication
}

func (b *Bytes) kinds() []*int64 {
	return []*int64{&b.Parameters, &b.Gathered, &b.Gradients, &b.States, &b.Activations, &b.Communication, &b.Host}
}

// kind returns the field that a value counts in.
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

// Memory is the predicted memory of a rank during a step.
type Memory struct {
	Levels []Bytes // while each operation of the rank's list runs, with what it uses and makes
	Peak   Bytes   // the maximum of each kind
	Total  int64   // the maximum of Levels' Total
	At     int     // the first operation that reaches it
}

// Memory predicts the memory of each rank. A value counts from the operation that makes it to the last one that needs
// it ([Plan.Flow]); the temporary memory of an operation does not count. A plan without messages is completed first,
// and Levels are then those of [Plan.WithMessages]. Errors are those of [Plan.Check], and lists of Sizes of the wrong
// length or with negative values.
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

// sized checks a plan and its sizes.
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
	changes := make([]Bytes, len(list)+1) // when each operation starts
	hold := func(v Value, communication bool, from, to int) {
		if from > to {
			return
		}
		*changes[from].kind(v, communication) += s.of(v)
		if to < len(list) {
			*changes[to+1].kind(v, communication) -= s.of(v)
		}
	}
	moved, hosted := map[int]bool{}, map[int]bool{} // units whose states the list moves, or the host updates
	shards := map[int][]*made{}                     // reduced gradients by unit
	for _, m := range flow.all {
		if m.Held == Reduced {
			shards[m.Unit] = append(shards[m.Unit], m)
		}
		moved[m.Unit], hosted[m.Unit] = moved[m.Unit] || m.Held == States, hosted[m.Unit] || m.Held == Fresh
		made := max(m.at, 0)
		from, to := made, max(m.pass, 0) // live range in the passes; outside it the value is being received or sent
		switch {
		case m.never:
			continue
		case m.Held == Reduced && list[made].Kind == Reduce && list[made].Axis != c.Units[m.Unit].Shard:
			from, made = flow.Done[made]+1, flow.Done[made]+1 // until then it is in the place of the sum
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
	for i, op := range list { // a shard that is added to another one needs an array of its own meanwhile
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

// Names in [Plan.Traffic] of transfers that belong to no axis.
const (
	betweenStages = "pipe" // messages between ranks: activations and their gradients
	ToHost        = "host" // copies to host memory and back
)

// Traffic predicts the bytes that each rank sends in a step, by axis. A collective counts as its full data: the full
// parameters of a gather, the full gradients of a reduction. A ring moves (n-1)/n of that for a gather or a
// reduce-scatter among n ranks, and twice as much for an all-reduce. A message counts at its sender. Axes of size 1
// send nothing. Errors are those of [Plan.Memory].
func (p *Plan) Traffic(s Sizes) ([]map[string]int64, error) {
	c, err := p.sized(s)
	if err != nil {
		return nil, err
	}
	all := make([]map[string]int64, len(c.Ranks))
	for r, list := range c.Ranks {
		all[r] = map[string]int64{}
		for i := range list {
			if axis, bytes := c.moves(r, i, s); bytes > 0 {
				all[r][axis] += bytes
			}
		}
	}
	return all, nil
}

// moves returns the bytes that an operation sends, and along which axis.
func (c *checked) moves(r, i int, s Sizes) (axis string, bytes int64) {
	op, flow := c.Ranks[r][i], c.flows[r]
	if a, _ := c.Axis(op.Axis); a.Size == 1 {
		return "", 0
	}
	switch op.verb() {
	case verb{Reduce, Gradient}:
		unit, v := c.Units[op.Unit], Value{Held: Sum, Unit: op.Unit}
		if shard := slices.Index(unit.Reduce, unit.Shard); shard >= 0 && shard < slices.Index(unit.Reduce, op.Axis) {
			v.Held = Reduced // already reduced to a shard
		}
		return op.Axis, s.of(v)
	case verb{Reduce, State}:
		for _, u := range c.unitsOf(op, flow.units) {
			bytes += s.of(Value{Held: resident, Unit: u}) + s.of(Value{Held: States, Unit: u})
		}
		return op.Axis, bytes
	}
	switch op.Kind {
	case Gather:
		return op.Axis, s.of(flow.Makes[i][0])
	case Send:
		return betweenStages, s.of(flow.Uses[i][0])
	case Store, Fetch:
		return ToHost, s.of(flow.Uses[i][0])
	}
	return "", 0
}
