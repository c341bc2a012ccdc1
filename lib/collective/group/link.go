package group

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/shardbook/shardbook/lib/collective/plan"
)

// Link is a simulated way between ranks that is slower than the real one.
type Link struct {
	Latency   time.Duration // of each round of messages
	Bandwidth float64       // bytes per second, in each direction of each rank; 0 is no limit
}

// Slow returns a view of g whose calls take at least as long as over the link, and move nothing more: a rank has one
// port out and one in, through which messages go one after another, and collectives are taken to be those of the ring
// (the naive ones where there is no ring). The time is slept, so that the processor has it for other things.
//
// What the view started and what it does are delayed; calls on g itself are not. A negative or infinite setting is an
// error.
func Slow(g Group, link Link) (Group, error) {
	if link.Latency < 0 || !(link.Bandwidth >= 0 && link.Bandwidth < math.Inf(1)) {
		return nil, fmt.Errorf("group: a link of %v and %g bytes/s: want neither negative, and 0 for no limit", link.Latency, link.Bandwidth)
	}
	return &slow{Group: g, link: link, sends: map[int]*Pending{}}, nil
}

type slow struct {
	Group
	link    Link
	out, in port

	mu    sync.Mutex
	sends map[int]*Pending // the last one started, by peer
}

// Do makes a call.
func (s *slow) Do(ctx context.Context, call Call) error {
	if call.Kind == KindSend { // it leaves when it is through
		_ = s.out.pass(ctx, time.Now(), s.time(call)) // the call itself says that the context has ended
		return s.Group.Do(ctx, call)
	}
	if err := s.Group.Do(ctx, call); err != nil {
		return err
	}
	return s.after(ctx, call)
}

// Start makes a call in the background.
func (s *slow) Start(ctx context.Context, call Call) *Pending {
	if call.Kind == KindSend {
		s.mu.Lock()
		defer s.mu.Unlock()
		before := s.sends[call.Peer]
		s.sends[call.Peer] = NewPending(func() error {
			if before != nil {
				before.Wait() // its error is for who started it
			}
			return s.Do(ctx, call)
		})
		return s.sends[call.Peer]
	}
	inner := s.Group.Start(ctx, call) // now, since calls are made in order
	return NewPending(func() error {
		if err := inner.Wait(); err != nil {
			return err
		}
		return s.after(ctx, call)
	})
}

// after is what a call that is no send takes when the others are there.
func (s *slow) after(ctx context.Context, call Call) error {
	took := s.time(call)
	if call.Kind == KindRecv {
		return s.in.pass(ctx, time.Now().Add(-took), took) // it came in while it went out
	}
	return s.out.pass(ctx, time.Now(), took)
}

// Split makes a group that is as slow.
func (s *slow) Split(ctx context.Context, color, key int) (Group, error) {
	part, err := s.Group.Split(ctx, color, key)
	if part == nil || err != nil {
		return nil, err
	}
	return Slow(part, s.link)
}

// collectives are the operations of plans that calls are.
var collectives = map[Kind]plan.Op{KindBroadcast: plan.Broadcast, KindReduce: plan.Reduce, KindAllReduce: plan.AllReduce,
	KindGather: plan.Gather, KindAllGather: plan.AllGather, KindScatter: plan.Scatter, KindReduceScatter: plan.ReduceScatter,
	KindAllToAll: plan.AllToAll}

// time is what the call takes this rank.
func (s *slow) time(call Call) time.Duration {
	rounds, bytes := 1, max(call.In.Len, call.Out.Len)*call.Type.Size()
	if op, ok := collectives[call.Kind]; ok {
		algorithm := plan.Ring
		if !plan.Exists(op, algorithm) {
			algorithm = plan.Naive
		}
		traffic, err := plan.Formula(op, algorithm, s.Size(), max(call.In.Len, call.Out.Len), call.Type.Size())
		if err != nil {
			return 0
		}
		rounds, bytes = traffic.Rounds, traffic.Sent[s.Rank()].Bytes
	} else if call.Kind == KindBarrier {
		bytes = 0
	}
	took := time.Duration(rounds) * s.link.Latency
	if s.link.Bandwidth > 0 {
		took += time.Duration(float64(bytes) / s.link.Bandwidth * float64(time.Second))
	}
	return took
}

// port lets one thing through at a time.
type port struct {
	mu   sync.Mutex
	free time.Time // when it will be
}

// pass waits until what begins at a time, or when the port is free, is through. It ends with the context.
func (p *port) pass(ctx context.Context, begin time.Time, took time.Duration) error {
	if took <= 0 {
		return nil
	}
	p.mu.Lock()
	if p.free.After(begin) {
		begin = p.free
	}
	p.free = begin.Add(took)
	wait := time.Until(p.free)
	p.mu.Unlock()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
