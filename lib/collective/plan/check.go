package plan

import "fmt"

// The largest plan that is looked at, in slots of all ranks together: a plan that
// was read from a file may state any numbers.
const maxSlots = 1 << 22

// check finds what makes a plan impossible to carry out, whatever it computes. After it no rank waits for ever: a rank
// posts all messages of a round at once, and every one of them has its counterpart in the same round.
func (p *Plan) check() error {
	if err := p.checkSizes(); err != nil {
		return err
	}
	count := 0
	for rank, steps := range p.Steps {
		if err := p.checkRank(rank, steps); err != nil {
			return err
		}
		count += len(steps)
	}
	if p.Rounds > count {
		return fmt.Errorf("plan: %d rounds for %d steps: want at least one step a round", p.Rounds, count)
	}
	return p.checkMessages()
}

func (p *Plan) checkSizes() error {
	switch {
	case int(p.Op) >= len(opNames):
		return fmt.Errorf("plan: unknown operation %v", p.Op)
	case int(p.Algorithm) >= len(algorithmNames):
		return fmt.Errorf("plan: unknown algorithm %v", p.Algorithm)
	case p.Ranks < 1 || p.Chunks < 1 || p.Rounds < 0:
		return fmt.Errorf("plan: %d ranks, %d chunks, %d rounds: want at least 1, 1 and 0", p.Ranks, p.Chunks, p.Rounds)
	case p.Ranks > maxRanks:
		return fmt.Errorf("plan: %d ranks: want at most %d", p.Ranks, maxRanks)
	case p.Chunks > maxSlots:
		return fmt.Errorf("plan: %d chunks: want at most %d", p.Chunks, maxSlots)
	case p.Slots > maxSlots/p.Ranks:
		return fmt.Errorf("plan: %d ranks with %d slots each: want at most %d slots in all", p.Ranks, p.Slots, maxSlots)
	case len(p.Steps) != p.Ranks:
		return fmt.Errorf("plan: steps of %d ranks, want %d", len(p.Steps), p.Ranks)
	case p.Op.parts() && p.Chunks%p.Ranks != 0:
		return fmt.Errorf("plan: %d chunks do not make %d equal parts for %v", p.Chunks, p.Ranks, p.Op)
	case p.Root < 0 || p.Root >= p.Ranks || p.Root != 0 && !p.Op.rooted():
		return fmt.Errorf("plan: root %d of %d ranks for %v", p.Root, p.Ranks, p.Op)
	}
	if least := p.firstResult() + p.Chunks; p.Slots < least {
		return fmt.Errorf("plan: %d slots, %v of %d chunks needs %d", p.Slots, p.Op, p.Chunks, least)
	}
	return nil
}

// firstResult is the slot at which the result begins.
func (p *Plan) firstResult() int {
	if p.Op == AllToAll {
		return p.Chunks
	}
	return 0
}

// resultOf is the part of a rank's slots that has the result.
func (p *Plan) resultOf(slots []*term) []*term {
	return slots[p.firstResult() : p.firstResult()+p.Chunks]
}

// chunkOf is the chunk that a slot is made for, or -1 for scratch, which takes any.
func (p *Plan) chunkOf(rank, slot int) int {
	switch {
	case slot < p.Chunks:
		return slot
	case slot < p.firstResult()+p.Chunks: // of AllToAll: block after block for this rank
		size := p.Chunks / p.Ranks
		return rank*size + slot%size
	}
	return -1
}

func (p *Plan) checkRank(rank int, steps []Step) error {
	round, local := 0, false
	var moved map[int]Action // what happens to slots in the round
	for i, s := range steps {
		fail := func(format string, args ...any) error {
			return fmt.Errorf("plan: %v: %s", where{rank, s}, fmt.Sprintf(format, args...))
		}
		if s.Round < round || s.Round >= p.Rounds {
			return fail("a step after round %d of %d", round, p.Rounds)
		}
		if i == 0 || s.Round > round {
			round, local = s.Round, false
			moved = map[int]Action{}
		}
		if s.Chunk < 0 || s.Chunk >= p.Chunks {
			return fail("chunk %d of %d", s.Chunk, p.Chunks)
		}
		used := []int{s.Slot}
		switch s.Action {
		case Send, Receive:
			if s.Peer < 0 || s.Peer >= p.Ranks || s.Peer == rank {
				return fail("peer %d: want another rank below %d", s.Peer, p.Ranks)
			}
			if local {
				return fail("a message after a local step of the round")
			}
		case Add, Copy:
			local = true
			used = append(used, s.From)
		default:
			return fail("unknown action")
		}
		for _, slot := range used {
			if slot < 0 || slot >= p.Slots {
				return fail("slot %d of %d", slot, p.Slots)
			}
			if c := p.chunkOf(rank, slot); c >= 0 && c != s.Chunk {
				return fail("slot %d has the size of chunk %d, not %d", slot, c, s.Chunk)
			}
		}
		if s.Action > Receive {
			continue
		}
		if was, seen := moved[s.Slot]; seen && was != s.Action {
			return fail("slot %d is both sent and received in the round", s.Slot)
		} else if seen && s.Action == Receive {
			return fail("slot %d is received twice in the round", s.Slot)
		}
		moved[s.Slot] = s.Action
	}
	return nil
}

// checkMessages pairs each send with its receive.
func (p *Plan) checkMessages() error {
	type pair struct{ from, to, round int }
	sends := map[pair][]Step{}
	for rank, steps := range p.Steps {
		for _, s := range steps {
			if s.Action == Send {
				key := pair{rank, s.Peer, s.Round}
				sends[key] = append(sends[key], s)
			}
		}
	}
	for rank, steps := range p.Steps {
		for _, s := range steps {
			if s.Action != Receive {
				continue
			}
			key := pair{s.Peer, rank, s.Round}
			if len(sends[key]) == 0 {
				return fmt.Errorf("plan: %v: rank %d does not send it", where{rank, s}, s.Peer)
			}
			if sent := sends[key][0]; sent.Chunk != s.Chunk {
				return fmt.Errorf("plan: %v: rank %d sends chunk %d", where{rank, s}, s.Peer, sent.Chunk)
			}
			sends[key] = sends[key][1:]
		}
	}
	for rank, steps := range p.Steps { // in order, so that the error is always the same
		for _, s := range steps {
			if s.Action == Send && len(sends[pair{rank, s.Peer, s.Round}]) > 0 {
				return fmt.Errorf("plan: %v: rank %d does not receive all of the round's", where{rank, s}, s.Peer)
			}
		}
	}
	return nil
}
