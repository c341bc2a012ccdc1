package group

import (
	"context"
	"runtime"
	"time"
)

// collective makes a collective call in three parts: it waits for the other ranks, it
// processes blocks of the work, and it waits for the end of the work. Only the first part
// is bounded by the context: in the others the buffers of all ranks are in use.
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
		if spin < spins {
			runtime.Gosched()
		} else {
			<-at.wake
		}
	}
	m.calls[m.rank] = Call{} // it refers to the buffers
	if m.work.broken.Load() {
		return m.failure.Load()
	}
	return nil
}

// arrive publishes the call. The last rank to arrive checks that all agree, and prepares the work.
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

// open wakes other ranks to help if there are several blocks.
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

// awaitOthers waits until all ranks have arrived: the work can begin, or is done.
func (m *member) awaitOthers(ctx context.Context, at place, kind Kind, started time.Time) *Failure {
	m.config.step(m.rank, stepArrived)
	err := m.await(ctx, at, func() bool { return m.opened.Load() >= at.seq || m.finished.Load() >= at.seq })
	if err == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.begun >= at.seq {
		return nil // there is only work to wait for
	}
	return m.giveUpWaiting(ctx, kind, at.seq, err, func() *Failure {
		return m.late(kind, at.seq, time.Since(started), err)
	})
}

// giveUpWaiting ends the group because of the error that ended a wait; late is the failure at a deadline.
func (m *member) giveUpWaiting(ctx context.Context, kind Kind, seq uint64, err error, late func() *Failure) *Failure {
	if f := m.failure.Load(); f != nil {
		return f
	}
	if err == context.DeadlineExceeded {
		return m.failLocked(late())
	}
	return m.giveUpLocked(ctx, kind, seq)
}

// help processes blocks of the work until none is left. The rank that does the last one wakes all ranks.
func (m *member) help(kind Kind, seq uint64) {
	ended := false
	defer func() {
		if !ended { // the goroutine ends in the middle of a block, which counts as done, and as broken
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
	ended = true
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
