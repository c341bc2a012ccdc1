package group

import (
	"fmt"
	"slices"
)

// maxCompared is the largest group whose ranks' buffers are compared pairwise.
const maxCompared = 64

// agree returns a failure of a rank whose call differs from the others'. The call of most ranks counts as right.
func (s *shared) agree(seq uint64) *Failure {
	first := &s.calls[0]
	for rank := range s.calls {
		if !s.calls[rank].agrees(first) {
			return s.odd(seq)
		}
	}
	if first.InCounts != nil {
		if f := s.oddCounts(seq); f != nil {
			return f
		}
	}
	if a, b := sharing(s.calls); a != b {
		return &Failure{Rank: b, Kind: first.Kind, Seq: seq,
			Reason: fmt.Sprintf("writes to memory that rank %d uses: give each rank buffers of its own", a)}
	}
	return nil
}

// odd is the failure of ranks that disagree.
func (s *shared) odd(seq uint64) *Failure {
	rank, right := Odd(s.calls, func(a, b Call) bool { return a.agrees(&b) })
	return &Failure{Rank: rank, Kind: s.calls[right].Kind, Seq: seq,
		Reason: fmt.Sprintf("called %v where rank %d called %v", &s.calls[rank], right, &s.calls[right])}
}

// Odd returns two ranks whose calls disagree: the first that is not of the majority, and the first of the majority. If
// all calls agree, rank is -1. It is for implementations of [Group].
func Odd[C any](calls []C, agree func(a, b C) bool) (rank, right int) {
	most := 0
	for i, call := range calls {
		like := 0
		for _, other := range calls {
			if agree(call, other) {
				like++
			}
		}
		if like == len(calls) {
			return -1, 0
		}
		if like > most {
			right, most = i, like
		}
	}
	return slices.IndexFunc(calls, func(c C) bool { return !agree(c, calls[right]) }), right
}

// oddCounts is the failure of the rank whose counts disagree with most others'; in a tie, of the one that sends.
func (s *shared) oddCounts(seq uint64) *Failure {
	var failure *Failure
	most := 0
	for rank := range s.calls {
		odd, reason := 0, ""
		for other := range s.calls {
			mine, theirs := &s.calls[rank], &s.calls[other]
			if get, give := mine.OutCounts[other], theirs.InCounts[rank]; get != give {
				odd += 2
				reason = fmt.Sprintf("expects %d elements from rank %d, which has %d for it", get, other, give)
			}
			if give, want := mine.InCounts[other], theirs.OutCounts[rank]; give != want {
				odd = (odd + 2) | 1
				reason = fmt.Sprintf("has %d elements for rank %d, which expects %d", give, other, want)
			}
		}
		if odd > most {
			most = odd
			failure = &Failure{Rank: rank, Kind: KindAllToAll, Seq: seq, Reason: reason}
		}
	}
	return failure
}

// agrees reports whether two ranks' calls are parts of one collective.
func (c *Call) agrees(other *Call) bool {
	if c.Kind != other.Kind {
		return false
	}
	if c.Kind == KindBarrier || c.Kind == KindSplit {
		return true
	}
	uneven := c.InCounts != nil
	return c.Type == other.Type && c.Op == other.Op && c.Peer == other.Peer &&
		uneven == (other.InCounts != nil) && (uneven || c.Elements() == other.Elements())
}

// sharing returns two ranks of which one writes to memory that the other reads or
// writes; the same rank twice if there are none, or too many to compare.
func sharing(calls []Call) (int, int) {
	if len(calls) > maxCompared {
		return 0, 0
	}
	for a := range calls {
		_, out := calls[a].uses(a)
		if out.Len == 0 {
			continue
		}
		size := calls[a].Type.Size()
		for b := range calls {
			if a == b {
				continue
			}
			otherIn, otherOut := calls[b].uses(b)
			if overlap(out, otherIn, size) || overlap(out, otherOut, size) {
				return min(a, b), max(a, b)
			}
		}
	}
	return 0, 0
}

// uses returns what the rank's call reads and writes.
func (c *Call) uses(rank int) (in, out Buffer) {
	in, out = c.In, c.Out
	root := rank == c.Peer
	switch c.Kind {
	case KindBroadcast:
		if root {
			return in, Buffer{}
		}
		return Buffer{}, out
	case KindReduce, KindGather:
		if !root {
			out = Buffer{}
		}
	case KindScatter:
		if !root {
			in = Buffer{}
		}
	}
	return in, out
}
