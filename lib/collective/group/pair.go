package group

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// pair matches the sends from one rank to another with the receives, one by one. The side
// that comes second copies the data. The group's mutex guards it.
type pair struct {
	waits    bool // a send or a receive is here and the other is not
	call     Call // it
	at       place
	begun    uint64 // the last message of which both were here
	finished atomic.Uint64
	broken   atomic.Bool
}

// pair returns the pair of a send or receive.
func (m *member) pair(kind Kind, peer int) *pair {
	from, to := m.rank, peer
	if kind == KindRecv {
		from, to = to, from
	}
	p := &m.pairs[from*len(m.members)+to]
	if *p == nil {
		*p = new(pair)
	}
	return *p
}

// exchange makes a send or a receive.
func (m *member) exchange(ctx context.Context, at place, call Call, started time.Time) *Failure {
	p, second, f := m.meet(at, call)
	if f != nil {
		return f
	}
	if second {
		m.move(p, at.seq, call)
	} else if f := m.awaitPeer(ctx, p, at, call, started); f != nil {
		return f
	}
	if p.broken.Load() {
		return m.failure.Load()
	}
	return nil
}

// meet publishes the call if the other side has not come yet, and otherwise checks that the two agree.
func (m *member) meet(at place, call Call) (p *pair, second bool, _ *Failure) {
	s := m.shared
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.failure.Load(); f != nil {
		return nil, false, f
	}
	for _, rank := range [...]int{call.Peer, m.rank} {
		if d := s.gone[rank]; d != nil {
			return nil, false, s.failLocked(d.failure(rank, call.Kind, at.seq))
		}
	}
	p = m.pair(call.Kind, call.Peer)
	if !p.waits {
		p.waits, p.call, p.at = true, call, at
		return p, false, nil
	}
	send, recv := &call, &p.call
	if call.Kind == KindRecv {
		send, recv = recv, send
	}
	if f := mismatch(send, recv, at.seq); f != nil {
		return nil, false, s.failLocked(f)
	}
	p.waits = false
	p.begun = at.seq
	return p, true, nil
}

// mismatch is the failure of a receive that does not fit its send.
func mismatch(send, recv *Call, seq uint64) *Failure {
	receiver, sender := send.Peer, recv.Peer
	reason := ""
	switch {
	case send.Type != recv.Type || send.In.Len != recv.Out.Len:
		reason = fmt.Sprintf("receives %d %v where rank %d sends %d %v", recv.Out.Len, recv.Type, sender, send.In.Len,
			send.Type)
	case overlap(send.In, recv.Out, send.Type.Size()):
		reason = fmt.Sprintf("receives into the memory that rank %d sends: give each rank buffers of its own", sender)
	default:
		return nil
	}
	return &Failure{Rank: receiver, Kind: KindRecv, Seq: seq, Reason: reason}
}

// move copies the data, and wakes the other side.
func (m *member) move(p *pair, seq uint64, call Call) {
	other := p.at
	ended := false
	defer func() {
		if !ended { // the goroutine ends in the middle of the copy
			p.broken.Store(true)
			m.fail(m.died(call.Kind, seq))
		}
		p.call = Call{} // it holds a buffer
		p.finished.Store(seq)
		other.signal()
	}()
	m.config.step(m.rank, stepWorking)
	in, out := call.In, p.call.Out
	if call.Kind == KindRecv {
		in, out = p.call.In, call.Out
	}
	bytes := in.Len * call.Type.Size()
	move(out.Data, in.Data, bytes, bytes >= streamBytes)
	ended = true
}

// awaitPeer waits until the other side came and moved the data.
func (m *member) awaitPeer(ctx context.Context, p *pair, at place, call Call, started time.Time) *Failure {
	m.config.step(m.rank, stepArrived)
	err := m.await(ctx, at, func() bool { return p.finished.Load() >= at.seq })
	if err == nil {
		return nil
	}
	s := m.shared
	s.mu.Lock()
	if p.begun < at.seq {
		defer s.mu.Unlock()
		return m.giveUpWaiting(ctx, call.Kind, at.seq, err, func() *Failure {
			return m.unmet(call, at.seq, time.Since(started), err)
		})
	}
	s.mu.Unlock()
	for p.finished.Load() < at.seq { // both buffers are in use
		<-at.wake
	}
	return nil
}

// unmet is the failure of a send or receive whose other side did not come. If that side
// waits for another rank itself, that one is at fault.
func (m *member) unmet(call Call, seq uint64, waited time.Duration, err error) *Failure {
	verb := "receive from"
	if call.Kind == KindRecv {
		verb = "send to"
	}
	reason := fmt.Sprintf("did not %s rank %d within %v", verb, m.rank, round(waited))
	fault := m.holdsUp(call.Peer)
	if fault != call.Peer {
		reason = fmt.Sprintf("holds up rank %d, which %s", call.Peer, reason)
	}
	reason += fmt.Sprintf(" (%s)", m.members[fault].whereabouts())
	return &Failure{Rank: fault, Kind: call.Kind, Seq: seq, Err: err, Reason: reason}
}

// holdsUp follows the ranks that a rank waits for to one that does not wait; in a cycle it is the rank itself.
func (s *shared) holdsUp(rank int) int {
	size := len(s.members)
	awaited := make([][]int, size) // by whom
	for i, p := range s.pairs {
		if p == nil || !p.waits {
			continue
		}
		waiting, other := i/size, i%size // a sender, for its receiver
		if p.call.Kind == KindRecv {
			waiting, other = other, waiting
		}
		awaited[waiting] = append(awaited[waiting], other)
	}
	for r, here := range s.here {
		for other := range s.here {
			if here && !s.here[other] {
				awaited[r] = append(awaited[r], other)
			}
		}
	}
	seen, next := map[int]bool{rank: true}, []int{rank}
	for len(next) > 0 {
		r := next[0]
		next = next[1:]
		if len(awaited[r]) == 0 {
			return r
		}
		for _, other := range awaited[r] {
			if !seen[other] {
				seen[other] = true
				next = append(next, other)
			}
		}
	}
	return rank
}

// leavePairs fails the group if a call waits for a rank that has ended, or is its own.
func (s *shared) leavePairs(rank int) {
	for other := range s.members {
		for _, i := range [...]int{rank*len(s.members) + other, other*len(s.members) + rank} {
			if p := s.pairs[i]; p != nil && p.waits {
				s.failLocked(s.gone[rank].failure(rank, p.call.Kind, p.at.seq))
			}
		}
	}
}
