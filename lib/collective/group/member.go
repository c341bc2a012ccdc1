package group

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"
)

func (m *member) Rank() int { return m.rank }

func (m *member) Size() int { return len(m.members) }

func (m *member) Do(ctx context.Context, call Call) error {
	return m.do(ctx, m.lane(call.Kind, call.Peer).ask(), call)
}

func (m *member) Start(ctx context.Context, call Call) *Pending {
	at := m.lane(call.Kind, call.Peer).ask()
	return NewPending(func() error { return m.do(ctx, at, call) })
}

// lane is the lane of a call. An invalid call is refused in that of the collectives.
func (m *member) lane(kind Kind, peer int) *lane {
	lanes := m.sends
	switch {
	case kind == KindRecv:
		lanes = m.recvs
	case kind != KindSend:
		return m.collectives
	}
	if peer < 0 || peer >= len(lanes) {
		return m.collectives
	}
	m.making.Lock()
	defer m.making.Unlock()
	if lanes[peer] == nil {
		lanes[peer] = newLane()
	}
	return lanes[peer]
}

// do makes a call when its turn has come.
func (m *member) do(ctx context.Context, at place, call Call) error {
	if ctx == nil {
		ctx = context.Background()
	}
	if at.turn != nil {
		select {
		case <-at.turn:
		case <-ctx.Done():
			// The group fails, so the calls before this one end soon.
			m.giveUpInQueue(ctx, call, at)
			<-at.turn
		}
	}
	ended := false
	defer func() {
		if !ended { // its goroutine ends in the middle of the call
			m.fail(m.died(call.Kind, at.seq))
		}
		at.leave()
	}()
	started := time.Now()
	number := m.recorder.Begin(m.name, at.seq, call, started)
	err := m.perform(ctx, at, call, started)
	m.recorder.End(number, err)
	ended = true
	return err
}

func (m *member) died(kind Kind, seq uint64) *Failure {
	return &Failure{Rank: m.rank, Kind: kind, Seq: seq, Reason: "died", Err: errDied}
}

var errDied = errors.New("its goroutine was ended")

func (m *member) perform(ctx context.Context, at place, call Call, started time.Time) error {
	m.config.step(m.rank, stepCalled)
	if f := m.failure.Load(); f != nil {
		return f
	}
	if err := call.Check(m.rank, len(m.members)); err != nil {
		return m.fail(&Failure{Rank: m.rank, Kind: call.Kind, Seq: at.seq,
			Reason: "made an invalid call: " + err.Error(), Err: err})
	}
	if ctx.Err() != nil {
		return m.giveUp(ctx, call.Kind, at.seq)
	}
	var f *Failure
	if call.Kind == KindSend || call.Kind == KindRecv {
		f = m.exchange(ctx, at, call, started)
	} else {
		f = m.collective(ctx, at, call, started)
	}
	m.config.step(m.rank, stepLeaving)
	if f != nil {
		return f
	}
	return nil
}

// await waits until ready, and returns nil; or until the group fails or the call's time is over, and returns why.
func (m *member) await(ctx context.Context, at place, ready func() bool) error {
	for range spins {
		if ready() {
			return nil
		}
		runtime.Gosched()
	}
	late := at.deadline(ctx, m.config.timeout)
	defer at.rest()
	for !ready() {
		select {
		case <-at.wake:
		case <-m.failed:
			return m.failure.Load()
		case <-ctx.Done():
			return ctx.Err()
		case <-late:
			return context.DeadlineExceeded
		}
	}
	return nil
}

// giveUp fails the group because the call's context has ended.
func (m *member) giveUp(ctx context.Context, kind Kind, seq uint64) *Failure {
	s := m.shared
	s.mu.Lock()
	defer s.mu.Unlock()
	return m.giveUpLocked(ctx, kind, seq)
}

// giveUpInQueue is giveUp of a call that waits for an earlier one of its lane. At a
// deadline, the rank that the earlier call waits for is at fault.
func (m *member) giveUpInQueue(ctx context.Context, call Call, at place) {
	s := m.shared
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() == context.DeadlineExceeded && s.failure.Load() == nil {
		if at.lane == m.collectives {
			if s.here[m.rank] {
				s.failLocked(s.late(s.calls[m.rank].Kind, s.begun+1, m.waited(), ctx.Err()))
				return
			}
		} else if p := m.pair(call.Kind, call.Peer); p.waits && p.at.lane == at.lane {
			s.failLocked(m.unmet(p.call, p.at.seq, m.waited(), ctx.Err()))
			return
		}
	}
	m.giveUpLocked(ctx, call.Kind, at.seq)
}

// waited is how long the rank has been in the first of its calls.
func (m *member) waited() time.Duration {
	for _, r := range m.recorder.Records() {
		if r.Ended.IsZero() {
			return time.Since(r.Started)
		}
	}
	return 0
}

func (m *member) giveUpLocked(ctx context.Context, kind Kind, seq uint64) *Failure {
	// Run ends the contexts when a rank fails: then that rank is the reason.
	for rank, d := range m.gone {
		if d != nil && d.err != nil && errors.Is(context.Cause(ctx), d.err) {
			return m.failLocked(d.failure(rank, kind, seq))
		}
	}
	err := ctx.Err()
	if cause := context.Cause(ctx); cause != err {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return m.failLocked(&Failure{Rank: m.rank, Kind: kind, Seq: seq, Reason: "gave up: " + err.Error(), Err: err})
}

func (m *member) Dump(w io.Writer) error {
	for _, other := range m.members {
		if err := WriteRecords(w, other.rank, other.recorder.Records()); err != nil {
			return err
		}
	}
	return nil
}
