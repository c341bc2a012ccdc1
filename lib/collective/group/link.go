package group

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/shardbook/shardbook/lib/collective/plan"
)

// Link is a simulated network link between ranks, for [Slow]. A bandwidth of 0 is no limit.
type Link = plan.Link

// Slow returns a view of g whose calls take at least as long as over the link, to simulate a slower network. A rank has
// one port in each direction, which messages pass one after another; a collective takes the time of the ring algorithm
// (of the naive one if there is no ring). The ranks sleep during that time, so that the processor is free.
//
// Calls on g itself are not delayed. A negative or infinite setting is an error.
func Slow(g Group, link Link) (Group, error) {
	if link.Latency < 0 || !(link.Bandwidth >= 0 && link.Bandwidth < math.Inf(1)) {
		return nil, fmt.Errorf("group: a link of %v and %g bytes/s: want neither negative, and 0 for no limit",
			link.Latency, link.Bandwidth)
	}
	return slowBy(g, link, new(port), new(port)), nil
}

func slowBy(g Group, link Link, out, in *port) *slow {
	return &slow{Group: g, link: link, out: out, in: in, sends: map[int]*Pending{}}
}

type slow struct {
	Group
	link    Link
	out, in *port // of the rank, whatever group it calls

	mu    sync.Mutex
	sends map[int]*Pending // the last one started, by peer
}

// Do makes a call.
func (s *slow) Do(ctx context.Context, call Call) error {
	if call.Kind == KindSend { // behind those that were started
		return s.Start(ctx, call).Wait()
	}
	return s.after(ctx, call, s.Group.Do(ctx, call))
}

// Start makes a call in the background.
func (s *slow) Start(ctx context.Context, call Call) *Pending {
	if call.Kind == KindSend { // it is sent when it has passed the port
		s.mu.Lock()
		defer s.mu.Unlock()
		before := s.sends[call.Peer]
		s.sends[call.Peer] = NewPending(func() error {
			if before != nil {
				before.Wait() // whose error its own Wait returns
			}
			_ = s.out.pass(ctx, time.Now(), s.time(call)) // the call itself says that the context has ended
			return s.Group.Do(ctx, call)
		})
		return s.sends[call.Peer]
	}
	inner := s.Group.Start(ctx, call) // now, since calls are made in order
	return NewPending(func() error { return s.after(ctx, call, inner.Wait()) })
}

// after waits for the time of a call other than a send, which the group has made.
func (s *slow) after(ctx context.Context, call Call, err error) error {
	if err != nil {
		return err
	}
	took := s.time(call)
	if call.Kind == KindRecv {
		err = s.in.pass(ctx, time.Now().Add(-took), took) // it was received while it was sent
	} else {
		err = s.out.pass(ctx, time.Now(), took)
	}
	if err != nil { // the group fails with the reason, as for any call whose context ends
		return s.Group.Do(ctx, BarrierCall())
	}
	return nil
}

// Split makes a group that is as slow, by the same ports.
func (s *slow) Split(ctx context.Context, color, key int) (Group, error) {
	part, err := s.Group.Split(ctx, color, key)
	if part == nil || err != nil {
		return nil, err
	}
	return slowBy(part, s.link, s.out, s.in), nil
}

// time is what the call takes: a collective the same on all ranks, as long as on the one that sends or receives most.
func (s *slow) time(call Call) time.Duration {
	bytes := float64(call.Elements() * call.Type.Size())
	rounds, n := 1, s.Size()
	switch call.Kind {
	case KindBroadcast, KindReduce:
		rounds = 2 * (n - 1)
	case KindAllReduce:
		rounds, bytes = 2*(n-1), bytes*2*float64(n-1)/float64(n)
	case KindGather, KindAllGather, KindScatter, KindReduceScatter: // bytes are those of one rank's part
		rounds, bytes = n-1, bytes*float64(n-1)
	case KindAllToAll:
		rounds, bytes = n-1, bytes*float64(n-1)/2
	}
	took := time.Duration(rounds) * s.link.Latency
	if s.link.Bandwidth > 0 && rounds > 0 {
		took += time.Duration(bytes / s.link.Bandwidth * float64(time.Second))
	}
	return took
}

// port lets one message pass at a time.
type port struct {
	mu   sync.Mutex
	free time.Time // when it will be
}

// pass waits until a message that begins to pass at a time, or when the port is free, has passed. It ends with the
// context.
func (p *port) pass(ctx context.Context, begin time.Time, took time.Duration) error {
	if took <= 0 {
		return nil
	}
	if ctx == nil { // as in calls of a group
		ctx = context.Background()
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
