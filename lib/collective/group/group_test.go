package group

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/gomlx/compute/dtypes/bfloat16"

	"github.com/shardbook/shardbook/internal/systest"
	"github.com/shardbook/shardbook/lib/collective/plan"
)

// TestNoAllocation: a call that is not started in the background allocates nothing, large or small.
func TestNoAllocation(t *testing.T) {
	if raceEnabled {
		systest.Skip(t, systest.Race, "the race detector allocates")
	}
	const n, times = 4, 20
	for _, length := range []int{n, 1 << 18} {
		calls := map[string]func(ctx context.Context, g Group, whole, part, other []float32) error{
			"all-reduce": func(ctx context.Context, g Group, whole, _, _ []float32) error {
				return AllReduce(ctx, g, whole, Sum)
			},
			"reduce-scatter": func(ctx context.Context, g Group, whole, part, _ []float32) error {
				return ReduceScatter(ctx, g, whole, part, Max)
			},
			"all-gather": func(ctx context.Context, g Group, whole, part, _ []float32) error {
				return AllGather(ctx, g, part, whole)
			},
			"all-to-all": func(ctx context.Context, g Group, whole, _, other []float32) error {
				return AllToAll(ctx, g, whole, other)
			},
			"broadcast": func(ctx context.Context, g Group, whole, _, _ []float32) error {
				return Broadcast(ctx, g, whole, 2)
			},
			"bfloat16": func(ctx context.Context, g Group, whole, _, _ []float32) error {
				halves := unsafe.Slice((*bfloat16.BFloat16)(unsafe.Pointer(&whole[0])), len(whole))
				return AllReduce(ctx, g, halves, Mean)
			},
			"barrier": func(ctx context.Context, g Group, _, _, _ []float32) error { return Barrier(ctx, g) },
			"send": func(ctx context.Context, g Group, whole, _, other []float32) error {
				if g.Rank()%2 == 0 {
					return Send(ctx, g, whole, g.Rank()+1)
				}
				return Recv(ctx, g, other, g.Rank()-1)
			},
		}
		for name, call := range calls {
			var allocated float64
			err := Run(context.Background(), n, func(ctx context.Context, g Group) error {
				whole, part, other := make([]float32, length), make([]float32, length/n), make([]float32, length)
				var failed error
				do := func() {
					if err := call(ctx, g, whole, part, other); err != nil {
						failed = err
					}
				}
				for range 10 {
					do()
				}
				if err := Barrier(ctx, g); err != nil {
					return err
				}
				if g.Rank() == 0 {
					allocated = testing.AllocsPerRun(times, do)
				} else {
					for range times + 1 {
						do()
					}
				}
				if failed != nil {
					return failed
				}
				return Barrier(ctx, g)
			})
			if err != nil || allocated != 0 {
				t.Errorf("%s of %d elements: %v allocations a call, error %v", name, length, allocated, err)
			}
		}
	}
}

// TestSameBits: the result does not depend on how many threads there are.
func TestSameBits(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	rng := rand.New(rand.NewPCG(3, 3))
	const n, length = 5, 100_003
	ins := make([][]float32, n)
	for r := range ins {
		ins[r] = randomValues[float32](rng, length)
	}
	want := reference(KindAllReduce, Mean, 0, ins, ins, nil)
	for _, threads := range []int{1, 2, 4, 8} {
		runtime.GOMAXPROCS(threads)
		bufs := copies(ins)
		err := Run(context.Background(), n, func(ctx context.Context, g Group) error {
			return AllReduce(ctx, g, bufs[g.Rank()], Mean)
		})
		if err == nil {
			err = same(bufs, want)
		}
		if err != nil {
			t.Errorf("%d threads: %v", threads, err)
		}
	}
}

// TestOrder: calls that were started run in order, and sends beside them.
func TestOrder(t *testing.T) {
	defer noLeaks(t)()
	err := Run(context.Background(), 3, func(ctx context.Context, g Group) error {
		r := g.Rank()
		x := []float32{float32(r)}
		next, got := make([]float32, 4), make([]float32, 4)
		pending := []*Pending{
			g.Start(ctx, RecvCall(got[:1], (r+2)%3)), // before its send
			g.Start(ctx, AllReduceCall(x, Sum)),      // 3
			g.Start(ctx, AllReduceCall(x, Sum)),      // 9
			g.Start(ctx, RecvCall(got[1:], (r+2)%3)),
		}
		if err := AllReduce(ctx, g, x, Sum); err != nil { // 27, after those started
			return err
		}
		if x[0] != 27 {
			return fmt.Errorf("the sum of sums is %v", x[0])
		}
		for i := range next {
			next[i] = float32(10*r + i)
		}
		pending = append(pending, g.Start(ctx, SendCall(next[:1], (r+1)%3)), g.Start(ctx, SendCall(next[1:], (r+1)%3)))
		if err := WaitAll(pending...); err != nil {
			return err
		}
		for i := range got {
			if want := float32(10*((r+2)%3) + i); got[i] != want {
				return fmt.Errorf("received %v", got)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestManyCallers makes calls of one rank from several goroutines: in no particular order, but one at a time.
func TestManyCallers(t *testing.T) {
	defer noLeaks(t)()
	err := Run(context.Background(), 3, func(ctx context.Context, g Group) error {
		var wait sync.WaitGroup
		errs := make(chan error, 8)
		for range cap(errs) {
			wait.Go(func() {
				for range 50 {
					if err := AllReduce(ctx, g, make([]float32, 10), Sum); err != nil {
						errs <- err
						return
					}
				}
			})
		}
		wait.Wait()
		close(errs)
		return <-errs
	})
	if err != nil {
		t.Error(err)
	}
}

func TestSplit(t *testing.T) {
	defer noLeaks(t)()
	err := Run(context.Background(), 7, func(ctx context.Context, g Group) error {
		r := g.Rank()
		color := r % 3
		if r == 6 {
			color = -1
		}
		sub, err := g.Split(ctx, color, -r) // the last rank first
		if err != nil || color < 0 {
			if sub != nil {
				return fmt.Errorf("color %d has a group", color)
			}
			return err
		}
		if want := map[bool]int{true: 0, false: 1}[r >= 3]; sub.Size() != 2 || sub.Rank() != want {
			return fmt.Errorf("rank %d of %d in color %d, want %d of 2", sub.Rank(), sub.Size(), color, want)
		}
		x := []int64{int64(r)}
		if err := AllReduce(ctx, sub, x, Sum); err != nil {
			return err
		}
		if want := int64(2*color + 3); x[0] != want {
			return fmt.Errorf("the sum of color %d is %d, want %d", color, x[0], want)
		}
		alone, err := sub.Split(ctx, sub.Rank(), 0)
		if err != nil {
			return err
		}
		return AllReduce(ctx, alone, x, Sum)
	})
	if err != nil {
		t.Error(err)
	}
}

// TestGoneFromSubgroup: a rank that returns is gone from its sub-groups too.
func TestGoneFromSubgroup(t *testing.T) {
	defer noLeaks(t)()
	err := Run(context.Background(), 4, func(ctx context.Context, g Group) error {
		sub, err := g.Split(ctx, g.Rank()/2, 0)
		if err != nil {
			return err
		}
		if sub, err = sub.Split(ctx, 0, 0); err != nil || g.Rank() == 3 {
			return err
		}
		return Barrier(ctx, sub)
	})
	if err == nil || !strings.Contains(err.Error(),
		"rank 2: barrier #1 of split #1 color 1, split #1 color 0: rank 1 has returned") {
		t.Errorf("error %v", err)
	}
}

// TestReturnWithoutWaiting: what a rank leaves behind ends.
func TestReturnWithoutWaiting(t *testing.T) {
	defer noLeaks(t)()
	err := Run(context.Background(), 3, func(ctx context.Context, g Group) error {
		if g.Rank() == 0 {
			for range 3 {
				g.Start(ctx, BarrierCall())
				g.Start(ctx, RecvCall(make([]float32, 1), 1))
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestTooLate calls what a rank that has returned should be part of.
func TestTooLate(t *testing.T) {
	defer noLeaks(t)()
	for name, call := range map[string]Call{"barrier": BarrierCall(), "receive": RecvCall(make([]float32, 1), 1)} {
		err := Run(context.Background(), 2, func(ctx context.Context, g Group) error {
			if g.Rank() == 1 {
				return nil
			}
			for s, gone := g.(*member).shared, false; !gone; time.Sleep(time.Millisecond) {
				s.mu.Lock()
				gone = s.gone[1] != nil
				s.mu.Unlock()
			}
			ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			return g.Do(ctx, call)
		})
		if want := "rank 0: " + name + " #1: rank 1 has returned"; err == nil || err.Error() != want {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// TestGoneWhileAwaited: a send to a rank that returns ends at once.
func TestGoneWhileAwaited(t *testing.T) {
	defer noLeaks(t)()
	waits := make(chan struct{})
	err := Run(context.Background(), 2, func(ctx context.Context, g Group) error {
		if g.Rank() == 1 {
			<-waits
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		return Send(ctx, g, []float32{1}, 1)
	}, hooked(func(rank int, s step) {
		if s == stepArrived {
			close(waits)
		}
	}))
	if want := "rank 0: send #1: rank 1 has returned"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %q", err, want)
	}
}

// TestDiesMoving: a message whose data may not be whole is an error on the other side.
func TestDiesMoving(t *testing.T) {
	defer noLeaks(t)()
	var died atomic.Int32
	errs := make([]error, 2)
	err := Run(context.Background(), 2, func(ctx context.Context, g Group) error {
		if g.Rank() == 0 {
			errs[0] = Send(ctx, g, []float32{1}, 1)
		} else {
			errs[1] = Recv(ctx, g, []float32{1}, 0)
		}
		return nil
	}, hooked(func(rank int, s step) {
		if s == stepWorking {
			died.Store(int32(rank))
			runtime.Goexit()
		}
	}))
	if err == nil {
		t.Error("no error of the rank that died")
	}
	if got, want := errs[1-died.Load()], fmt.Sprintf("rank %d died", died.Load()); got == nil ||
		!strings.Contains(got.Error(), want) {
		t.Errorf("the other rank has error %v, want %q", got, want)
	}
}

func TestPanic(t *testing.T) {
	defer noLeaks(t)()
	err := Run(context.Background(), 3, func(ctx context.Context, g Group) error {
		if g.Rank() == 1 {
			panic("no good")
		}
		return Barrier(ctx, g)
	})
	if err == nil || strings.Count(err.Error(), "barrier #1: rank 1 panicked: no good") != 2 ||
		!strings.Contains(err.Error(), "rank 1: panic: no good") {
		t.Errorf("error %v", err)
	}
}

func TestFlight(t *testing.T) {
	var dump strings.Builder
	err := Run(context.Background(), 2, func(ctx context.Context, g Group) error {
		for range 5 {
			if err := AllReduce(ctx, g, make([]float32, 3), Max); err != nil {
				return err
			}
		}
		sub, err := g.Split(ctx, 0, 0)
		if err != nil {
			return err
		}
		if err := Broadcast(ctx, sub, make([]uint8, 9), 1); err != nil {
			return err
		}
		if g.Rank() == 1 {
			return Send(ctx, g, make([]int64, 2), 0)
		}
		defer g.Dump(&dump)
		return Recv(ctx, g, make([]int64, 3), 1)
	})
	if err == nil {
		t.Fatal("no error from a receive of the wrong length")
	}
	for rank := range 2 {
		for _, want := range []string{
			"all-reduce #5 (max of 3 float32): ",
			"split #6: ",
			"broadcast #1 of split #6 color 0 (9 uint8 from rank 1): ",
		} {
			if !strings.Contains(dump.String(), want) {
				t.Errorf("rank %d: the dump has no %q:\n%s", rank, want, dump.String())
			}
		}
	}
	if !strings.Contains(dump.String(), "receive #1: rank 0 receives 3 int64 where rank 1 sends 2 int64") {
		t.Errorf("the dump does not say what went wrong:\n%s", dump.String())
	}
}

func TestRecorder(t *testing.T) {
	r := &Recorder{records: make([]Record, 2)}
	begun := time.Now()
	first := r.Begin("", 1, BarrierCall(), begun)
	second := r.Begin("", 2, BarrierCall(), begun)
	r.End(second, nil)
	third := r.Begin("", 3, BarrierCall(), begun)
	r.End(first, fmt.Errorf("late")) // no longer kept: must not end the third
	got := r.Records()
	if len(got) != 2 || got[0].Seq != 2 || got[1].Seq != 3 || got[0].Ended.IsZero() || !got[1].Ended.IsZero() ||
		got[1].Err != "" {
		t.Errorf("records %+v", got)
	}
	r.End(third, nil)
	if got = r.Records(); got[1].Ended.IsZero() {
		t.Errorf("records %+v", got)
	}
}

func TestPlanErrors(t *testing.T) {
	ring, err := plan.New(plan.AllReduce, plan.Ring, 2)
	if err != nil {
		t.Fatal(err)
	}
	exchange, err := plan.New(plan.AllToAll, plan.OneShot, 2)
	if err != nil {
		t.Fatal(err)
	}
	broken := &plan.Plan{Op: plan.Broadcast, Ranks: 2, Chunks: 1, Slots: 1, Rounds: 1,
		Steps: [][]plan.Step{{{Action: plan.Send, Peer: 1, Slot: 5}}, nil}}
	groups, err := New(2)
	if err != nil {
		t.Fatal(err)
	}
	alone, err := New(1)
	if err != nil {
		t.Fatal(err)
	}
	ctx, buf := context.Background(), make([]int32, 4)
	for want, err := range map[string]error{
		"no plan for 2 ranks":                 RunPlan(ctx, groups[0], nil, buf, Sum),
		"is for 2 ranks, and the group has 1": RunPlan(ctx, alone[0], ring, buf, Sum),
		"slot 5 of 1":                         RunPlan(ctx, groups[0], broken, buf, Sum),
		"the mean of int32":                   RunPlan(ctx, groups[0], ring, buf, Mean),
		"3 elements for an all-to-all":        RunPlan(ctx, groups[0], exchange, buf[:3], Sum),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}
