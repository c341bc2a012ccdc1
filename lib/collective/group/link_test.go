package group

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/must"
)

// TestLinkTime has what calls take by the model: rounds times the latency, and the bytes of the rank that sends or gets
// most. The rounds and bytes are those of plan.Formula's table.
func TestLinkTime(t *testing.T) {
	const n = 1200 // bytes of the whole buffer
	whole, part := make([]float32, n/4), make([]float32, n/4/4)
	for _, c := range []struct {
		call   func(rank int) Call
		rounds int
		bytes  int
	}{
		{func(rank int) Call { return SendCall(whole, (rank+1)%4) }, 1, n},
		{func(rank int) Call { return RecvCall(whole, (rank+1)%4) }, 1, n},
		{func(int) Call { return BarrierCall() }, 1, 0},
		{func(int) Call { return BroadcastCall(whole, 2) }, 6, n},
		{func(int) Call { return reduceCall(whole, Sum, 2) }, 6, n},
		{func(int) Call { return AllReduceCall(whole, Sum) }, 6, 2 * 3 * n / 4},
		{func(int) Call { return callOf(KindAllGather, Sum, 0, part, whole) }, 3, 3 * n / 4},
		{func(int) Call { return callOf(KindReduceScatter, Sum, 0, whole, part) }, 3, 3 * n / 4},
		{func(int) Call { return callOf(KindAllToAll, Sum, 0, whole, whole) }, 3, 3 * n / 2},
		{func(rank int) Call { // only the root has a whole buffer
			if rank == 2 {
				return callOf(KindGather, Sum, 2, part, whole)
			}
			return callOf(KindGather, Sum, 2, part, nil)
		}, 3, 3 * n / 4},
		{func(rank int) Call {
			if rank == 2 {
				return callOf(KindScatter, Sum, 2, whole, part)
			}
			return callOf(KindScatter, Sum, 2, nil, part)
		}, 3, 3 * n / 4},
	} {
		for rank, g := range slowGroups(t, 4, Link{Latency: time.Second, Bandwidth: 1000}) {
			call := c.call(rank)
			want := time.Duration(c.rounds)*time.Second + time.Duration(c.bytes)*time.Millisecond
			if got := g.(*slow).time(call); got != want {
				t.Errorf("%v takes rank %d %v, want %v", &call, rank, got, want)
			}
		}
	}
	alone := AllReduceCall(whole, Sum)
	if got := slowGroups(t, 1, Link{Latency: time.Second, Bandwidth: 1000})[0].(*slow).time(alone); got != 0 {
		t.Errorf("%v takes a rank alone %v", &alone, got)
	}
}

func slowGroups(t *testing.T, n int, link Link) []Group {
	t.Helper()
	groups, err := New(n)
	must.Do(t, err)
	for r := range groups {
		if groups[r], err = Slow(groups[r], link); err != nil {
			t.Fatal(err)
		}
	}
	return groups
}

// TestSlowTakesAtLeast holds calls against the clock: a sleep may be longer than it should be, but not shorter.
func TestSlowTakesAtLeast(t *testing.T) {
	defer noLeaks(t)()
	const pause = 20 * time.Millisecond
	link := Link{Bandwidth: 1e6}
	buf := func() []uint8 { return make([]uint8, 20_000) } // takes a pause
	for _, c := range []struct {
		name string
		play func(ctx context.Context, g Group) error
		want [3]time.Duration // by rank
	}{
		{"two out of one port", func(ctx context.Context, g Group) error {
			if g.Rank() == 0 {
				return WaitAll(g.Start(ctx, SendCall(buf(), 1)), g.Start(ctx, SendCall(buf(), 2)))
			}
			return Recv(ctx, g, buf(), 0)
		}, [3]time.Duration{2 * pause, pause, pause}},
		{"two into one port", func(ctx context.Context, g Group) error {
			if g.Rank() == 0 {
				return WaitAll(g.Start(ctx, RecvCall(buf(), 1)), g.Start(ctx, RecvCall(buf(), 2)))
			}
			return Send(ctx, g, buf(), 0)
		}, [3]time.Duration{2 * pause, pause, pause}},
		{"two collectives", func(ctx context.Context, g Group) error { // of 2(N-1)/N = 4/3 of a pause each
			return WaitAll(g.Start(ctx, AllReduceCall(buf(), Max)), g.Start(ctx, AllReduceCall(buf(), Max)))
		}, [3]time.Duration{8 * pause / 3, 8 * pause / 3, 8 * pause / 3}},
		{"a part of the group", func(ctx context.Context, g Group) error {
			part, err := g.Split(ctx, g.Rank()/2, -g.Rank()) // of ranks 1 and 0, and of 2
			if err != nil {
				return err
			}
			return Broadcast(ctx, part, buf(), 0)
		}, [3]time.Duration{pause, pause, 0}},
		{"one port for the group and a part of it", func(ctx context.Context, g Group) error {
			part, err := g.Split(ctx, g.Rank()/2, 0)
			if err != nil {
				return err
			}
			switch g.Rank() {
			case 0:
				return WaitAll(g.Start(ctx, SendCall(buf(), 2)), part.Start(ctx, SendCall(buf(), 1)))
			case 1:
				return Recv(ctx, part, buf(), 0)
			}
			return Recv(ctx, g, buf(), 0)
		}, [3]time.Duration{2 * pause, pause, pause}},
	} {
		if err := Run(context.Background(), 3, func(ctx context.Context, g Group) error {
			view, err := Slow(g, link)
			if err != nil {
				return err
			}
			began := time.Now() // of all: none goes on before
			if err := Barrier(ctx, g); err != nil {
				return err
			}
			if err := c.play(ctx, view); err != nil {
				return err
			}
			if took := time.Since(began); took < c.want[g.Rank()] {
				return fmt.Errorf("took %v, want at least %v", took, c.want[g.Rank()])
			}
			return Barrier(ctx, g)
		}); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestSlowEndsWithItsContext cancels calls of rank 1 over a link that takes for ever, when rank 0 has done its part. As
// of any group, both get the failure.
func TestSlowEndsWithItsContext(t *testing.T) {
	defer noLeaks(t)()
	sum := func() Call { return AllReduceCall(make([]float32, 3), Sum) }
	for _, c := range []struct {
		name  string
		play  func(ctx context.Context, g Group) error
		other Call
	}{
		{"all-reduce", func(ctx context.Context, g Group) error { return g.Do(ctx, sum()) }, sum()},
		{"started", func(ctx context.Context, g Group) error {
			return g.Start(ctx, BarrierCall()).Wait()
		}, BarrierCall()},
		{"send", func(ctx context.Context, g Group) error {
			return Send(ctx, g, []float32{1}, 0)
		}, RecvCall(make([]float32, 1), 1)},
	} {
		groups := must.Get(New(2))(t)
		slow := must.Get(Slow(groups[1], Link{Latency: time.Hour}))(t)
		other := groups[0].Start(context.Background(), c.other)
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(10*time.Millisecond, cancel)
		got := []error{c.play(ctx, slow)}
		if err := other.Wait(); err != nil { // it is with the send, which had not left
			got = append(got, err)
		}
		got = append(got, Barrier(context.Background(), groups[0]))
		for _, err := range got {
			var failure *Failure
			if !errors.As(err, &failure) || failure.Rank != 1 || !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v, want that rank 1 was cancelled", c.name, err)
			}
		}
	}
}

func TestSlowErrors(t *testing.T) {
	groups := must.Get(New(1))(t)
	for _, link := range []Link{{Latency: -1}, {Bandwidth: -1}, {Bandwidth: math.NaN()}, {Bandwidth: math.Inf(1)}} {
		if g, err := Slow(groups[0], link); err == nil || g != nil {
			t.Errorf("%+v: no error", link)
		}
	}
	g := must.Get(Slow(groups[0], Link{Latency: time.Nanosecond}))(t)
	if part, err := g.Split(t.Context(), -1, 0); part != nil || err != nil {
		t.Errorf("a negative color gives the group %v and the error %v", part, err)
	}
	var none context.Context // a group takes it for one that never ends
	if err := g.Do(none, BarrierCall()); err != nil {
		t.Errorf("no context: %v", err)
	}
	if err := Send(t.Context(), g, []float32{1}, 7); err == nil {
		t.Error("a send to rank 7 of 1: no error")
	}
}
