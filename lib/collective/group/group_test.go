package group

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gomlx/compute/dtypes/bfloat16"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
	"github.com/shardbook/shardbook/lib/collective/plan"
)

var noLeaks = systest.NoLeaks

// TestNoAllocation: a call that is not started in the background allocates nothing, large or small.
func TestNoAllocation(t *testing.T) {
	if raceEnabled {
		systest.Skip(t, systest.Race, "the race detector allocates")
	}
	const n, times = 4, 20
	for _, length := range []int{n, 1 << 18} {
		calls := make([][]Call, n) // by rank
		for r := range calls {
			whole, part, other := make([]float32, length), make([]float32, length/n), make([]float32, length)
			halves := make([]bfloat16.BFloat16, length)
			message := SendCall(whole, r^1)
			if r%2 == 1 {
				message = RecvCall(other, r^1)
			}
			calls[r] = []Call{message, AllReduceCall(whole, Sum), callOf(KindReduceScatter, Max, 0, whole, part),
				callOf(KindAllGather, Sum, 0, part, whole), callOf(KindAllToAll, Sum, 0, whole, other),
				BroadcastCall(whole, 2), AllReduceCall(halves, Mean), BarrierCall()}
		}
		for i := range calls[0] {
			var allocated float64
			err := Run(context.Background(), n, func(ctx context.Context, g Group) error {
				var failed error
				do := func() {
					if err := g.Do(ctx, calls[g.Rank()][i]); err != nil {
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
				return errors.Join(failed, Barrier(ctx, g))
			})
			if err != nil || allocated != 0 {
				t.Errorf("%v: %v allocations a call, error %v", &calls[0][i], allocated, err)
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
	want := make([][]float32, n)
	for i := range length {
		mean := reduceColumn(Mean, ins, i)
		for r := range want {
			want[r] = append(want[r], mean)
		}
	}
	for _, threads := range []int{1, 2, 4, 8} {
		runtime.GOMAXPROCS(threads)
		bufs := make([][]float32, n)
		for r := range bufs {
			bufs[r] = slices.Clone(ins[r])
		}
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

// TestManyCallers makes calls of one rank from several goroutines: in no particular order, but one at a time. Each
// split gets its own group.
func TestManyCallers(t *testing.T) {
	defer noLeaks(t)()
	for name, call := range map[string]func(ctx context.Context, g Group) error{
		"all-reduce": func(ctx context.Context, g Group) error { return AllReduce(ctx, g, make([]float32, 10), Sum) },
		"split": func(ctx context.Context, g Group) error {
			sub, err := g.Split(ctx, 0, 0)
			if err == nil && sub.Size() != 3 {
				err = fmt.Errorf("a group of %d", sub.Size())
			}
			return err
		},
	} {
		if err := Run(context.Background(), 3, func(ctx context.Context, g Group) error {
			errs := make(chan error, 8)
			for range cap(errs) {
				go func() {
					var err error
					for i := 0; i < 50 && err == nil; i++ {
						err = call(ctx, g)
					}
					errs <- err
				}()
			}
			var all error
			for range cap(errs) {
				all = errors.Join(all, <-errs)
			}
			return all
		}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
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

// TestFlight has a failure in the flight recorders.
func TestFlight(t *testing.T) {
	var dump strings.Builder
	_ = Run(context.Background(), 2, func(ctx context.Context, g Group) error {
		if g.Rank() == 1 {
			return Send(ctx, g, make([]int64, 2), 0)
		}
		defer g.Dump(&dump)
		return Recv(ctx, g, make([]int64, 3), 1)
	})
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
	ring := must.Get(plan.New(plan.AllReduce, plan.Ring, 2))(t)
	exchange := must.Get(plan.New(plan.AllToAll, plan.OneShot, 2))(t)
	broken := &plan.Plan{Op: plan.Broadcast, Ranks: 2, Chunks: 1, Slots: 1, Rounds: 1,
		Steps: [][]plan.Step{{{Action: plan.Send, Peer: 1, Slot: 5}}, nil}}
	groups := must.Get(New(2))(t)
	alone := must.Get(New(1))(t)
	ctx, buf := context.Background(), make([]int32, 4)
	for want, err := range map[string]error{
		"no plan for 2 ranks":                 RunPlan(ctx, groups[0], nil, buf, Sum),
		"is for 2 ranks, and the group has 1": RunPlan(ctx, alone[0], ring, buf, Sum),
		"slot 5 of 1":                         RunPlan(ctx, groups[0], broken, buf, Sum),
		"the mean of int32":                   RunPlan(ctx, groups[0], ring, buf, Mean),
		"3 elements for an all-to-all":        RunPlan(ctx, groups[0], exchange, buf[:3], Sum),
	} {
		must.Refuse(t, "", err, want)
	}
}
