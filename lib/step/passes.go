package step

import (
	"errors"
	"fmt"
	"slices"
)

// passRules says which results of a block for a micro-batch each pass computes (is), and which it needs before: bits,
// with the names in passWords.
var passRules = map[Kind]struct{ is, needs int }{
	Forward: {is: 1}, Backward: {is: 6, needs: 1}, InputGrad: {is: 2, needs: 1}, WeightGrad: {is: 4, needs: 3},
	Recompute: {needs: 1},
}

const allPasses = 7

var passWords = map[int]string{1: "forward pass", 2: "input gradient", 4: "weight gradient"}

// passes finds invalid sizes, operations of blocks, units or ranks that do not exist, and passes that are missing,
// repeated, out of order or on several ranks. Replicas is the number of ranks that have each pass: 1 for a plan without
// axes.
func (p *Plan) passes() (replicas int, err error) {
	if err := p.head(); err != nil {
		return 0, err
	}
	on := make([]int, len(p.Blocks)*p.Micro) // ranks with its passes, by block and micro-batch
	for r, list := range p.Ranks {
		done := map[int]int{}
		for i, op := range list {
			if err := p.known(op); err != nil {
				return 0, p.errorAt(r, i, "%w", err)
			}
			rule, key := passRules[op.Kind], op.Block*p.Micro+op.Micro
			if lacks := rule.needs &^ done[key]; lacks != 0 {
				return 0, p.errorAt(r, i, "the rank has no %s of the micro-batch before it: move it after that, on "+
					"the same rank", passWords[lacks&-lacks])
			} else if done[key]&rule.is != 0 {
				return 0, p.errorAt(r, i, "the rank has done that already: remove one; use B, or I and W")
			}
			done[key] |= rule.is
		}
		for _, op := range list {
			if op.Kind != Forward {
				continue
			}
			key := op.Block*p.Micro + op.Micro
			if op.Kind = map[int]Kind{4: WeightGrad, 6: Backward}[allPasses&^done[key]]; op.Kind != 0 {
				return 0, fmt.Errorf("step: block %d has no %v for micro-batch %d: add %v to rank %d",
					op.Block, op.Kind, op.Micro, p.Text(op), r)
			}
			on[key]++
		}
	}
	replicas = 1
	if len(p.Axes) > 0 {
		replicas = slices.Max(on)
	}
	for key, n := range on {
		op := Op{Kind: Forward, Block: key / p.Micro, Micro: key % p.Micro}
		switch {
		case n == 0:
			return 0, fmt.Errorf("step: block %d has no forward pass for micro-batch %d: add %v to a rank",
				op.Block, op.Micro, p.Text(op))
		case n != replicas:
			return 0, fmt.Errorf("step: block %d has its passes for micro-batch %d on %d ranks, want %d: "+
				"have one in each replica", op.Block, op.Micro, n, replicas)
		}
	}
	return replicas, nil
}

// head checks all but the lists.
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
	case p.Micro > ops/len(p.Blocks): // bounds the memory of the checks
		return fmt.Errorf("step: %d operations are too few for %d blocks and %d micro-batches", ops, len(p.Blocks),
			p.Micro)
	case p.Every < 1 || p.Micro%p.Every != 0:
		return fmt.Errorf("step: an update every %d micro-batches: give a divisor of the %d micro-batches", p.Every,
			p.Micro)
	case p.Weights == Flush && p.Every != p.Micro:
		return fmt.Errorf("step: an update every %d of %d micro-batches: weights %q need one every %d; use that, or "+
			"other weights", p.Every, p.Micro, p.Weights, p.Micro)
	case !slices.Contains(allWeights, p.Weights):
		return fmt.Errorf("step: unknown weights %q: use one of %v", p.Weights, allWeights)
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
			return fmt.Errorf("step: axis %q: give each axis a name of its own, of letters, digits and -_.+/ alone",
				a.Name)
		}
		names[a.Name] = true
		in := map[int]bool{}
		for _, g := range a.Groups {
			if len(g) != a.Size {
				return fmt.Errorf("step: axis %s has a group of %d ranks, want its size, %d", a.Name, len(g), a.Size)
			}
			for _, r := range g {
				if r < 0 || r >= len(p.Ranks) || in[r] {
					return fmt.Errorf("step: axis %s: rank %d is in two groups, or not below %d", a.Name, r,
						len(p.Ranks))
				}
				in[r] = true
			}
		}
	}
	for u, unit := range p.Units {
		once := map[string]bool{}
		for _, name := range unit.Reduce {
			if !names[name] || once[name] {
				return fmt.Errorf("step: unit %d is reduced along %q twice, or the plan has no such axis", u, name)
			}
			once[name] = true
		}
		if unit.Shard != "" && !once[unit.Shard] {
			return fmt.Errorf("step: unit %d is sharded along %q: use an axis that it is reduced along", u, unit.Shard)
		}
	}
	return nil
}

// known returns an error for an operation of a block, unit, axis or rank that does not exist.
func (p *Plan) known(op Op) error {
	v := op.verb()
	if op.Kind == Wait {
		v.Kind = op.Of
	}
	if _, ok := table[v]; !ok {
		return fmt.Errorf("unknown kind %q of %q", byte(op.Kind), byte(op.What))
	}
	least, last := 0, len(p.Blocks)-1
	if v.ofAll() {
		least = -1
	}
	switch {
	case v.ofBlock() && (op.Block < 0 || op.Block > last):
		return fmt.Errorf("block %d: the model has blocks 0 to %d", op.Block, last)
	case !v.ofBlock() && (op.Unit < least || op.Unit >= len(p.Units)):
		return fmt.Errorf("unit %d: there are units 0 to %d", op.Unit, len(p.Units)-1)
	case op.Micro < 0 || op.Micro >= p.Micro:
		return fmt.Errorf("micro-batch %d: there are micro-batches 0 to %d", op.Micro, p.Micro-1)
	case op.Peer < 0 || op.Peer >= len(p.Ranks):
		return fmt.Errorf("rank %d: there are ranks 0 to %d", op.Peer, len(p.Ranks)-1)
	case (v == verb{Send, Activation} || v == verb{Recv, Gradient}) && op.Block == last,
		(v == verb{Send, Gradient} || v == verb{Recv, Activation}) && op.Block == 0:
		return errors.New("there is no block before the first or after the last: remove it")
	}
	if op.Kind == Gather || op.Kind == Reduce {
		if _, ok := p.Axis(op.Axis); !ok {
			return fmt.Errorf("axis %q: the plan has no such axis: add it", op.Axis)
		}
	}
	return nil
}

// errorAt is an error that says where it is.
func (p *Plan) errorAt(rank, at int, format string, args ...any) error {
	op := p.Ranks[rank][at]
	return fmt.Errorf("step: rank %d, position %d, %v: %w", rank, at, p.Text(op), fmt.Errorf(format, args...))
}
