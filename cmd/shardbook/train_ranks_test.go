package main

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/job"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

func toyBatch(step int) (inputs, targets *tensors.Tensor, err error) {
	inputs, targets = toy.Batch(step, 12)
	return inputs, targets, nil
}

// toyRanks starts a run of a small model in a layout.
func toyRanks(t *testing.T, b *xla.Backend, p job.Parallel) (*ranks, error) {
	t.Helper()
	p.Accumulate, p.Every = 1, 1
	j := &job.Job{Batch: 12, Parallel: p}
	l, err := j.Layout()
	if err != nil {
		t.Fatal(err)
	}
	return newRanks(t.Context(), b, j, l, toyRecipe(), toyBatch, around{})
}

func toyRecipe() train.Recipe {
	return train.Recipe{Model: toy.Model(false), Optimizer: optim.AdamW(1e-2)}
}

// near tells whether two lists are as long as each other and nowhere farther apart.
func near(a, b []float64, within float64) bool {
	for i := range min(len(a), len(b)) {
		if !(math.Abs(a[i]-b[i]) <= within) {
			return false
		}
	}
	return len(a) == len(b)
}

// What fails on one rank, or for who listens, ends all ranks with that error.
func TestRanksFail(t *testing.T) {
	backend := devicetest.Open(t, 3)
	bad := errors.New("bad")
	nothing := func(metrics) error { return nil }
	bucket := job.Parallel{Data: 3, Sync: job.Bucket}
	for _, p := range []job.Parallel{bucket, {Data: 3, Sync: job.Async}, {Data: 1}, {Data: 3, Sync: job.SPMD},
		{Data: 3, Sync: job.Ranks, Zero: 3, Prefetch: 1},
		{Data: 1, Sync: job.Ranks, Pipe: 2, Cut: job.CutMeasured, RecomputeStages: true}} {
		r, err := toyRanks(t, backend, p)
		if err != nil {
			t.Fatalf("%+v: %v", p, err)
		}
		if err := r.Train(t.Context(), 9, toyBatch, func(metrics) error { return bad }); err != bad || r.Steps() < 1 {
			t.Errorf("%s: after a report that failed: step %d, error %v", p.Sync, r.Steps(), err)
		}
		var once atomic.Bool
		err = r.Train(t.Context(), r.Steps()+9, func(step int) (*tensors.Tensor, *tensors.Tensor, error) {
			if !once.Swap(true) {
				return nil, nil, bad
			}
			return toyBatch(step)
		}, nothing)
		if err != bad {
			t.Errorf("%s: a batch failed: %v", p.Sync, err)
		}
		if err := r.Train(t.Context(), r.Steps()+1, toyBatch, nothing); err == nil {
			t.Errorf("%s: trains on after an error", p.Sync)
		}
		if err := r.Save(t.Context(), t.TempDir(), nil, 1); err == nil {
			t.Errorf("%s: saves after an error", p.Sync)
		}
		r.Close()
	}
	r, err := toyRanks(t, backend, bucket)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Save(t.Context(), "/dev/null/nowhere", nil, 1); err == nil || strings.Contains(err.Error(), "rank 0") {
		t.Errorf("saving where nothing can be: %v", err)
	}
	r.Close()
	for _, p := range []job.Parallel{{Data: 4, Sync: job.Bucket}, {Data: 4, Sync: job.Ranks, Zero: 3}} {
		if _, err := toyRanks(t, backend, p); err == nil ||
			!strings.Contains(err.Error(), "the layout needs 4 devices, the backend has 3") {
			t.Errorf("stage %d: 4 ranks on 3 devices: %v", p.Zero, err)
		}
	}
}

// All who go through a gate stop at the same step, wherever each is when it closes.
func TestGate(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for range 200 {
		ctx, stop := context.WithCancel(t.Context())
		g := &gate{ctx: ctx, begun: 3}
		ends := make([]int, 4)
		var all sync.WaitGroup
		for i := range ends {
			turns, last := random.IntN(5), 4+random.IntN(9)
			all.Go(func() {
				ends[i] = 3
				for g.pass(ends[i]) {
					ends[i]++
					for range turns {
						runtime.Gosched()
					}
					if ends[i] == last {
						stop()
					}
				}
			})
		}
		all.Wait()
		stop()
		if slices.Min(ends) != slices.Max(ends) {
			t.Fatalf("stopped at %v", ends)
		}
	}
}

// The run rests before the first traced step and before the one that comes before it, and nowhere else but where it
// would.
func TestTracerRests(t *testing.T) {
	for _, c := range []struct {
		began, end int
		want       []int
	}{
		{0, 10, []int{6, 7, 10}},
		{0, 4, []int{1, 4}},
		{0, 3, []int{3}},
		{0, 1, []int{1}},
		{5, 9, []int{6, 9}},
		{7, 9, []int{9}},
	} {
		tr := &tracer{rec: trace.New()}
		tr.plan(c.began, c.end)
		var rests []int
		for step := c.began; step < c.end; {
			step = tr.next(step, c.end)
			rests = append(rests, step)
		}
		if !slices.Equal(rests, c.want) {
			t.Errorf("from %d to %d it rests at %v, want %v", c.began, c.end, rests, c.want)
		}
	}
}
