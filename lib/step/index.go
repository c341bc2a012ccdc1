package step

import (
	"errors"
	"fmt"
	"slices"
)

// part is what a pass makes. Backward makes two of them.
type part int

const (
	output     part = iota // Forward
	inputGrad              // Backward, InputGrad
	weightGrad             // Backward, WeightGrad
)

func (k Kind) parts() []part {
	switch k {
	case Forward:
		return []part{output}
	case Backward:
		return []part{inputGrad, weightGrad}
	case InputGrad:
		return []part{inputGrad}
	case WeightGrad:
		return []part{weightGrad}
	}
	return nil
}

// index has the places of all passes of all blocks for all micro-batches. Replicas, which are ranks that do the same
// for other rows of a batch, each have all of them; the first rank with a pass belongs to the first rank with another,
// and so on.
type index struct {
	p        *Plan
	replicas int
	places   [3][]place // by part: by block, micro-batch and replica, of which found has the number
	found    [3][]int32
}

func (x *index) key(op Op) int { return op.Block*x.p.Micro + op.Micro }

// of returns the places of a part of a block for a micro-batch, in ascending order of ranks.
func (x *index) of(t part, key int) []place {
	from := key * x.replicas
	return x.places[t][from : from+int(x.found[t][key])]
}

// index finds all passes. Errors: sizes that cannot be, operations of what there is not, a pass that is there twice or
// not at all or in two forms, a block's passes for one micro-batch on several ranks or in the wrong order.
func (p *Plan) index() (*index, error) {
	if err := p.head(); err != nil {
		return nil, err
	}
	forwards, n := 0, len(p.Blocks)*p.Micro
	for r, list := range p.Ranks {
		for i, op := range list {
			if err := p.known(op); err != nil {
				return nil, p.errorAt(r, i, "%w", err)
			}
			if op.Kind == Forward {
				forwards++
			}
		}
	}
	x := &index{p: p, replicas: 1}
	if len(p.Axes) > 0 { // else there are no replicas
		x.replicas = max(1, (forwards+n/2)/n)
	}
	for t := range x.places {
		x.places[t], x.found[t] = make([]place, n*x.replicas), make([]int32, n)
	}
	for r, list := range p.Ranks {
		for i, op := range list {
			if err := x.add(op, place{int32(r), int32(i)}); err != nil {
				return nil, err
			}
		}
	}
	return x, x.complete()
}

// add enters one operation. What must come before it is on the same rank, and the last of its kind that was entered.
func (x *index) add(op Op, at place) error {
	key, rank, position := x.key(op), int(at.rank), int(at.at)
	for _, t := range op.Kind.parts() {
		there := x.of(t, key)
		if n := len(there); n == x.replicas || n > 0 && there[n-1].rank == at.rank {
			other := x.p.Ranks[there[n-1].rank][there[n-1].at]
			if other.Kind != op.Kind && there[n-1].rank == at.rank {
				return x.p.errorAt(rank, position, "rank %d has %v at position %d already: keep B, or I and W",
					there[n-1].rank, x.p.Text(other), there[n-1].at)
			}
			return x.p.errorAt(rank, position, "it is at position %d of rank %d already: remove one",
				there[n-1].at, there[n-1].rank)
		}
		x.places[t][key*x.replicas+len(there)] = at
		x.found[t][key]++
	}
	needs, words := output, "the forward pass"
	switch op.Kind {
	case WeightGrad:
		needs, words = inputGrad, "the input gradient"
	case Backward, InputGrad, Recompute:
	default:
		return nil
	}
	before := x.of(needs, key)
	if n := len(before); n > 0 && before[n-1].rank == at.rank {
		return nil
	} else if n > 0 && x.replicas == 1 {
		return x.p.errorAt(rank, position,
			"rank %d has %s of the micro-batch: all passes of a block for one must be on one rank", before[0].rank, words)
	}
	return x.p.errorAt(rank, position, "it comes before %s of the micro-batch, or on another rank: move it behind", words)
}

// complete looks for passes that are missing.
func (x *index) complete() error {
	for key := range x.found[output] {
		op := Op{Kind: Forward, Block: key / x.p.Micro, Micro: key % x.p.Micro}
		forward := x.of(output, key)
		if n := len(forward); n < x.replicas {
			more := ""
			if n > 0 {
				more = fmt.Sprintf(" but on %d of %d replicas", n, x.replicas)
			}
			return fmt.Errorf("step: block %d has no forward pass for micro-batch %d%s: add %v to a rank",
				op.Block, op.Micro, more, x.p.Text(op))
		}
		for _, t := range []part{inputGrad, weightGrad} {
			there := x.of(t, key)
			if len(there) == len(forward) {
				continue
			}
			at := slices.IndexFunc(forward, func(f place) bool {
				return !slices.ContainsFunc(there, func(b place) bool { return b.rank == f.rank })
			})
			op.Kind = Backward
			words := "backward pass"
			if t == weightGrad {
				op.Kind, words = WeightGrad, "weight gradient"
			}
			return fmt.Errorf("step: block %d has no %s for micro-batch %d: add %v to rank %d",
				op.Block, words, op.Micro, x.p.Text(op), forward[at].rank)
		}
	}
	return nil
}

// input returns the pass that makes what a pass needs of another block, if it needs any: of the same rank, or of the
// replica's.
func (x *index) input(op Op, rank int) (place, bool) {
	return x.neighbour(op, rank, -1)
}

// output returns the pass that needs what a pass makes for another block.
func (x *index) output(op Op, rank int) (place, bool) {
	return x.neighbour(op, rank, 1)
}

func (x *index) neighbour(op Op, rank, way int) (place, bool) {
	t := output
	switch op.Kind {
	case Forward:
	case Backward, InputGrad:
		t, way = inputGrad, -way
	default:
		return nowhere, false
	}
	other := op
	if other.Block += way; other.Block < 0 || other.Block >= len(x.p.Blocks) {
		return nowhere, false
	}
	places := x.of(t, x.key(other))
	if at, ok := slices.BinarySearchFunc(places, rank, byRank); ok {
		return places[at], true
	}
	return places[x.replica(op, rank)], true
}

// replica is that of a rank which has a pass.
func (x *index) replica(op Op, rank int) int {
	replica, _ := slices.BinarySearchFunc(x.of(output, x.key(op)), rank, byRank)
	return replica
}

func byRank(p place, rank int) int { return int(p.rank) - rank }

// head checks what is not in the ranks' lists.
func (p *Plan) head() error {
	ops := 0
	for _, list := range p.Ranks {
		ops += len(list)
	}
	switch {
	case len(p.Ranks) == 0:
		return errors.New("step: no ranks: give at least one")
	case len(p.Blocks) == 0:
		return errors.New("step: no blocks: give at least one")
	case p.Micro < 1:
		return fmt.Errorf("step: %d micro-batches: give at least 1", p.Micro)
	case p.Micro > ops/len(p.Blocks): // so that memory is bounded by what there is
		return fmt.Errorf("step: %d operations are too few for %d blocks and %d micro-batches", ops, len(p.Blocks), p.Micro)
	case p.Every < 1 || p.Micro%p.Every != 0:
		return fmt.Errorf("step: an update every %d micro-batches: give a divisor of the %d micro-batches", p.Every, p.Micro)
	}
	switch p.Weights {
	case Flush:
		if p.Every != p.Micro {
			return fmt.Errorf("step: an update every %d of %d micro-batches with weights %q: give %d, or other weights",
				p.Every, p.Micro, p.Weights, p.Micro)
		}
	case Stash, Vertical, Double:
	default:
		return fmt.Errorf("step: unknown weights %q: use %s, %s, %s or %s", p.Weights, Flush, Stash, Vertical, Double)
	}
	for b, block := range p.Blocks {
		for _, u := range block.Units {
			if u < 0 || u >= len(p.Units) {
				return fmt.Errorf("step: block %d uses unit %d: there are %d units", b, u, len(p.Units))
			}
		}
	}
	return p.checkAxes()
}

func (p *Plan) checkAxes() error {
	names := map[string]bool{}
	for _, a := range p.Axes {
		if !plain(a.Name) || names[a.Name] {
			return fmt.Errorf("step: axis %q: give each axis a name of its own, of letters, digits and -_.+/ alone", a.Name)
		}
		names[a.Name] = true
		in := map[int]bool{}
		for _, g := range a.Groups {
			if len(g) != a.Size {
				return fmt.Errorf("step: axis %s: a group of %d ranks, its size is %d: make all groups as large",
					a.Name, len(g), a.Size)
			}
			for _, r := range g {
				if r < 0 || r >= len(p.Ranks) || in[r] {
					return fmt.Errorf("step: axis %s: rank %d is in two groups, or is none of the %d ranks", a.Name, r, len(p.Ranks))
				}
				in[r] = true
			}
		}
	}
	for u, unit := range p.Units {
		once := map[string]bool{}
		for _, name := range unit.Reduce {
			if !names[name] || once[name] {
				return fmt.Errorf("step: unit %d is reduced along %q: give each of its axes once, and a line for each", u, name)
			}
			once[name] = true
		}
		if unit.Shard != "" && !once[unit.Shard] {
			return fmt.Errorf("step: unit %d is sharded along %q: that must be one of the axes that it is reduced along",
				u, unit.Shard)
		}
	}
	return nil
}

// known refuses an operation of what the plan does not have.
func (p *Plan) known(op Op) error {
	v := verb{op.Kind, op.What}
	if op.Kind == Wait {
		v.Kind = op.Of
	}
	if _, ok := verbs[v]; !ok {
		return fmt.Errorf("unknown kind %q of %q", byte(op.Kind), byte(op.What))
	}
	least := 0
	if op.Kind == Update || v == (verb{Reduce, State}) {
		least = -1 // all units
	}
	switch {
	case v.ofBlock() && (op.Block < 0 || op.Block >= len(p.Blocks)):
		return fmt.Errorf("block %d: the model has blocks 0 to %d", op.Block, len(p.Blocks)-1)
	case !v.ofBlock() && (op.Unit < least || op.Unit >= len(p.Units)):
		return fmt.Errorf("unit %d: there are units 0 to %d", op.Unit, len(p.Units)-1)
	case op.Micro < 0 || op.Micro >= p.Micro:
		return fmt.Errorf("micro-batch %d: there are micro-batches 0 to %d", op.Micro, p.Micro-1)
	case op.Peer < 0 || op.Peer >= len(p.Ranks):
		return fmt.Errorf("rank %d: there are ranks 0 to %d", op.Peer, len(p.Ranks)-1)
	case (v == verb{Send, Activation} || v == verb{Recv, Gradient}) && op.Block == len(p.Blocks)-1,
		(v == verb{Send, Gradient} || v == verb{Recv, Activation}) && op.Block == 0:
		return errors.New("there is no such block before or behind: remove it")
	}
	if op.Kind == Gather || op.Kind == Reduce {
		if _, ok := p.Axis(op.Axis); !ok {
			return fmt.Errorf("axis %q: there is no such axis: have it in the plan", op.Axis)
		}
	}
	return nil
}

// errorAt is an error that says where.
func (p *Plan) errorAt(rank, at int, format string, args ...any) error {
	op := p.Ranks[rank][at]
	return fmt.Errorf("step: rank %d, position %d, %v: %w", rank, at, p.Text(op), fmt.Errorf(format, args...))
}
