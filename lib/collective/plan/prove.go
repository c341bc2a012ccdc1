package plan

import (
	"errors"
	"fmt"
)

// Prove checks that a plan is right, by carrying it out on symbols instead of numbers: every send has its receive in
// the same round, no rank uses a slot that is empty or has another size, and in the end each rank has the result of the
// operation; of a reduction, every rank's contribution exactly once. The error names the rank, the round and the step
// at fault.
//
// What holds for symbols holds for numbers of any type and buffers of any length, if
// the reduction does not depend on the order of its operands, up to rounding.
func (p *Plan) Prove() error {
	_, err := p.results()
	return err
}

// results are the terms of each rank's chunks in the end. The errors are Prove's.
func (p *Plan) results() ([][]*term, error) {
	slots, err := p.symbolic(nil)
	if err != nil {
		return nil, err
	}
	for rank := range slots {
		slots[rank] = p.resultOf(slots[rank])
		if err := p.proveRank(rank, slots[rank]); err != nil {
			return nil, err
		}
	}
	return slots, nil
}

// symbolic carries the plan out on terms, round by round, and returns what the slots of each rank
// hold in the end. after, if given, sees them after each round.
func (p *Plan) symbolic(after func(round int, slots [][]*term)) ([][]*term, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	a := newAlgebra()
	slots := p.inputs(a)
	next := make([]int, p.Ranks) // step of each rank
	for round := range p.Rounds {
		sent := map[[2]int][]*term{} // by sender and receiver, in order
		for rank, steps := range p.Steps {
			for _, s := range steps[next[rank]:] {
				if s.Round != round || s.Action > Receive {
					break
				}
				if s.Action == Send {
					v, err := s.read(slots[rank], s.Slot)
					if err != nil {
						return nil, fmt.Errorf("plan: %v: %w", where{rank, s}, err)
					}
					ends := [2]int{rank, s.Peer}
					sent[ends] = append(sent[ends], v)
				}
			}
		}
		for rank, steps := range p.Steps {
			for _, s := range steps[next[rank]:] {
				if s.Round != round {
					break
				}
				if s.Action == Receive {
					ends := [2]int{s.Peer, rank}
					slots[rank][s.Slot] = sent[ends][0]
					sent[ends] = sent[ends][1:]
				} else if err := s.local(a, slots[rank]); err != nil {
					return nil, fmt.Errorf("plan: %v: %w", where{rank, s}, err)
				}
				next[rank]++
			}
		}
		if after != nil {
			after(round, slots)
		}
	}
	return slots, nil
}

// read returns what a slot holds, for the step to use.
func (s Step) read(slots []*term, slot int) (*term, error) {
	v := slots[slot]
	if v == nil {
		return nil, errors.New("the slot holds nothing yet")
	}
	if v.chunk != s.Chunk {
		return nil, fmt.Errorf("slot %d holds %v, which has the size of chunk %d", slot, v, v.chunk)
	}
	return v, nil
}

// local takes an Add or Copy.
func (s Step) local(a *algebra, slots []*term) error {
	if s.Action == Send {
		return nil
	}
	v, err := s.read(slots, s.From)
	if err == nil && s.Action == Add {
		var own *term
		if own, err = s.read(slots, s.Slot); err == nil {
			v, err = a.add(own, v)
		}
	}
	if err == nil {
		slots[s.Slot] = v
	}
	return err
}

// where names a step in errors.
type where struct {
	rank int
	step Step
}

func (w where) String() string {
	return fmt.Sprintf("rank %d, round %d (%v)", w.rank, w.step.Round, w.step)
}

// inputs are the slots before the first round: each rank holds what the operation takes from it, and nothing else.
func (p *Plan) inputs(a *algebra) [][]*term {
	slots := make([][]*term, p.Ranks)
	for rank := range slots {
		slots[rank] = make([]*term, p.Slots)
		for c := range p.Chunks {
			var has bool
			switch p.Op {
			case Broadcast, Scatter:
				has = rank == p.Root
			case Gather, AllGather:
				has = rank == p.owner(c)
			default:
				has = true
			}
			if has {
				slots[rank][c] = a.leaf(rank, c)
			}
		}
	}
	return slots
}

// owner is the rank whose part a chunk belongs to.
func (p *Plan) owner(chunk int) int { return chunk / (p.Chunks / p.Ranks) }

// proveRank checks a rank's result.
func (p *Plan) proveRank(rank int, result []*term) error {
	for c, got := range result {
		slot := p.firstResult() + c
		if p.promises(rank, c) {
			if got == nil {
				return fmt.Errorf("plan: rank %d ends with nothing in slot %d", rank, slot)
			}
			if p.Op.reduces() {
				if r := got.missing(p.Ranks); r >= 0 {
					return fmt.Errorf("plan: rank %d ends with %v in slot %d, without rank %d's contribution",
						rank, got, slot, r)
				}
				continue
			}
		}
		from, chunk, must := p.keeps(rank, c)
		if must && (got == nil || got.left != nil || got.rank != from || got.chunk != chunk) {
			return fmt.Errorf("plan: rank %d ends with %v in slot %d, want %s%d", rank, got, slot, letters(from), chunk)
		}
	}
	return nil
}

// promises reports whether slot c of a rank's result is part of the operation's result.
func (p *Plan) promises(rank, c int) bool {
	switch p.Op {
	case Reduce, Gather:
		return rank == p.Root
	case Scatter, ReduceScatter:
		return rank == p.owner(c)
	}
	return true
}

// keeps reports whether slot c of a rank's result must hold one rank's contribution unchanged, and which.
func (p *Plan) keeps(rank, c int) (from, chunk int, must bool) {
	switch p.Op {
	case Reduce:
		return rank, c, rank != p.Root // only the root's data changes
	case AllReduce, ReduceScatter:
		return 0, 0, false
	case Broadcast, Scatter:
		return p.Root, c, p.promises(rank, c)
	case AllToAll:
		size := p.Chunks / p.Ranks
		return p.owner(c), rank*size + c%size, true
	}
	return p.owner(c), c, p.promises(rank, c) // Gather and AllGather
}

// SameBits reports whether all ranks get bitwise equal results: whether they reduce each chunk in the same order.
// Data-parallel training depends on it, since ranks whose sums differ in the last bit drift apart. It is true for
// operations without a reduction. The error is Prove's.
func (p *Plan) SameBits() (bool, error) {
	results, err := p.results()
	if err != nil || !p.Op.reduces() {
		return err == nil, err
	}
	for c := range p.Chunks {
		first := -1
		for rank := range p.Ranks {
			if !p.promises(rank, c) {
				continue
			}
			if first < 0 {
				first = results[rank][c].id
			}
			if results[rank][c].id != first {
				return false, nil
			}
		}
	}
	return true, nil
}

// Order is the order of additions in a rank's result for one chunk: "((a2+b2)+c2)+d2" is the sum of the chunks 2 of
// ranks 0, 1, 2 and 3, added in that order. Ranks are a to z, then aa, ab and so on. It returns an error for a rank or
// chunk that the plan does not have, for a result that the operation does not give to this rank, and those of Prove.
func (p *Plan) Order(rank, chunk int) (string, error) {
	results, err := p.results()
	if err != nil {
		return "", err
	}
	if rank < 0 || rank >= p.Ranks || chunk < 0 || chunk >= p.Chunks || !p.promises(rank, chunk) {
		return "", fmt.Errorf("plan: %v of %d ranks gives rank %d no chunk %d", p.Op, p.Ranks, rank, chunk)
	}
	return results[rank][chunk].nested(), nil
}
