package group

import (
	"context"
	"errors"
	"runtime"
	"time"
)

// collective makes a collective call in three parts: it arrives and waits for the
// others, it helps with the work, and it waits for the end of the work. Only the
// first part can take long, and only that is bounded by the context: in the others
// the buffers of all ranks are in use.
func (m *member) collective(ctx context.Context, at place, call Call, started time.Time) *Failure {
	last, f := m.arrive(call, at.seq)
	if f != nil {
		return f
	}
	if last {
		m.open(at.seq)
	} else if f := m.awaitOthers(ctx, at, call.Kind, started); f != nil {
		return f
	}
	m.help(call.Kind, at.seq)
	for spin := 0; m.finished.Load() < at.seq; spin++ {
		if spin < m.config.spins {
			runtime.Gosched()
		} else {
			<-at.wake
		}
	}
	m.calls[m.rank] = Call{} // nobody looks at it any more, and it holds the buffers
	if m.work.broken.Load() {
		return m.failure.Load()
	}
	return nil
}

// arrive publishes the call. The last rank to arrive checks that all agree, and
// prepares the work.
func (m *member) arrive(call Call, seq uint64) (last bool, _ *Failure) {
	s := m.shared
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.failure.Load(); f != nil {
		return false, f
	}
	if f := s.absent(call.Kind, seq); f != nil {
		return false, s.failLocked(f)
	}
	s.calls[m.rank] = call
	s.here[m.rank] = true
	s.arrived++
	if s.arrived < len(s.members) {
		return false, nil
	}
	if f := s.agree(seq); f != nil {
		return true, s.failLocked(f)
	}
	s.begun = seq
	s.arrived = 0
	clear(s.here)
	s.work.prepare(s.calls)
	if call.Kind == KindSplit {
		s.split(seq)
	}
	return true, nil
}

// open lets others help if the work is worth waking them.
func (m *member) open(seq uint64) {
	if m.work.blocks < 2 {
		return
	}
	m.opened.Store(seq)
	helpers := m.helpers
	for _, other := range m.members {
		if other != m && helpers > 0 {
			other.collectives.signal()
			helpers--
		}
	}
}

// awaitOthers waits until the work is open to help, or done.
func (m *member) awaitOthers(ctx context.Context, at place, kind Kind, started time.Time) *Failure {
	m.config.step(m.rank, stepArrived)
	err := m.await(ctx, at, func() bool { return m.opened.Load() >= at.seq || m.finished.Load() >= at.seq })
	if err == nil {
		return nil
	}
	s := m.shared
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.begun >= at.seq {
		return nil // there is only work to wait for
	}
	switch {
	case s.failure.Load() != nil:
		return s.failure.Load()
	case errors.Is(err, context.DeadlineExceeded):
		return s.failLocked(s.late(kind, at.seq, time.Since(started), err))
	default:
		return m.giveUpLocked(ctx, kind, at.seq)
	}
}

// help does blocks of the work until none is left. Whoever does the last one wakes
// everyone.
func (m *member) help(kind Kind, seq uint64) {
	whole := false
	defer func() {
		if !whole { // the rank dies in here: its block counts as done, and as broken
			m.work.broken.Store(true)
			m.fail(m.died(kind, seq))
			m.blockDone(seq)
		}
	}()
	for {
		block := m.work.next.Add(1) - 1
		if block >= m.work.blocks {
			break
		}
		m.config.step(m.rank, stepWorking)
		m.block(int(block))
		m.blockDone(seq)
	}
	clear(m.srcs)
	clear(m.dsts)
	whole = true
}

func (s *shared) blockDone(seq uint64) {
	if s.work.left.Add(-1) > 0 {
		return
	}
	s.finished.Store(seq)
	for _, other := range s.members {
		other.collectives.signal()
	}
}
