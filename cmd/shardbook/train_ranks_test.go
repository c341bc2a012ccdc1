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
	"time"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/job"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// toy is two layers, which compile fast.
func toy() train.Recipe {
	layer := func(name string, in, out int) chain.Block {
		return chain.Block{Name: name, Params: params.Tree{params.New(name, dtypes.Float32, in, out)},
			Apply: func(p params.Nodes, x, _, _ *graph.Node) *graph.Node {
				return graph.Tanh(graph.Dot(x, p.Get(name)).Product())
			}}
	}
	random := rand.New(rand.NewPCG(1, 2))
	m := chain.Model{Blocks: []chain.Block{layer("in", 4, 5), layer("out", 5, 3)}}
	m.Criterion = func(y, targets *graph.Node) *graph.Node {
		return graph.ReduceAllMean(graph.Square(graph.Sub(y, targets)))
	}
	initial := [][]float32{normal(random, 20), normal(random, 15)}
	m.Initial = func() ([]*tensors.Tensor, error) {
		return []*tensors.Tensor{tensors.FromFlatDataAndDimensions(initial[0], 4, 5),
			tensors.FromFlatDataAndDimensions(initial[1], 5, 3)}, nil
	}
	return train.Recipe{Model: m, Optimizer: optim.AdamW(1e-2)}
}

func toyBatch(step int) (inputs, targets *tensors.Tensor, err error) {
	random := rand.New(rand.NewPCG(3, uint64(step)))
	return tensors.FromFlatDataAndDimensions(normal(random, 24), 6, 4), tensors.FromFlatDataAndDimensions(normal(random,
		18), 6, 3), nil
}

func normal(random *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(random.NormFloat64())
	}
	return x
}

// wayPipe is a pipeline, to tests that go through all ways of ranks.
const wayPipe job.Sync = "pipe"

// toyRanks starts three ranks, with shards if the way is job.Ranks, or two that are a pipeline.
func toyRanks(t *testing.T, b *xla.Backend, way job.Sync) *ranks {
	t.Helper()
	p := job.OneDevice()
	switch p.Data, p.Sync = 3, way; way {
	case wayPipe:
		p.Data, p.Sync, p.Pipe, p.Cut, p.RecomputeStages = 1, job.Ranks, 2, job.CutMeasured, true
	case job.Ranks:
		p.Zero, p.Prefetch = 3, 1
	}
	r, err := toyRunner(t, b, p)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// toyRunner starts a run of the toy in a layout.
func toyRunner(t *testing.T, b *xla.Backend, p job.Parallel) (*ranks, error) {
	t.Helper()
	j := &job.Job{Batch: 6, Parallel: p}
	if p.Data == 4 {
		j.Batch = 8
	}
	l, err := j.Layout()
	if err != nil {
		t.Fatal(err)
	}
	return newRanks(t.Context(), b, j, l, toy(), toyBatch, around{})
}

// near tells whether two lists are as long as each other and nowhere farther apart.
func near[F float32 | float64](a, b []F, within float64) bool {
	for i := range min(len(a), len(b)) {
		if !(math.Abs(float64(a[i]-b[i])) <= within) {
			return false
		}
	}
	return len(a) == len(b)
}

// weights are the parameters that a probe sees.
func weights(t *testing.T, r *ranks) (all []float32) {
	t.Helper()
	p, err := r.Probe(func(p params.Nodes, in []*graph.Node) []*graph.Node {
		return []*graph.Node{graph.Mul(p.Get("in"), in[0]), graph.Mul(p.Get("out"), in[0])}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	out, err := p.Call(float32(1))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range out {
		all = append(all, tensors.MustCopyFlatData[float32](w)...)
	}
	return all
}

// Ranks that are stopped in the middle stop behind one step, and go on from their checkpoint. All-reduces come to the
// same bits in each form, which those of one that was not stopped are; other programs round otherwise.
func TestRanksStopAndGoOn(t *testing.T) {
	const steps = 7
	backend := devicetest.Open(t, 3)
	var losses []float64
	note := func(m metrics) error {
		losses = append(losses, m.Loss)
		return nil
	}
	whole := toyRanks(t, backend, job.Naive)
	if err := whole.Train(t.Context(), steps, toyBatch, note); err != nil || whole.Steps() != steps {
		t.Fatal(whole.Steps(), err)
	}
	want, wantLosses := weights(t, whole), losses
	if err := whole.Close(); err != nil {
		t.Error(err)
	}
	before := runtime.NumGoroutine()
	for _, way := range []job.Sync{job.Naive, job.Overlap, job.Bucket, job.Ranks, job.Server, job.Async, wayPipe} {
		losses = nil
		dir := t.TempDir()
		r := toyRanks(t, backend, way)
		ctx, interrupt := context.WithCancel(t.Context())
		if err := r.Train(ctx, steps, toyBatch, func(m metrics) error {
			if r.Steps() == 2 {
				interrupt()
			}
			return note(m)
		}); err != nil {
			t.Fatal(way, err)
		}
		for i, rank := range r.ranks {
			if rank.Steps() != r.Steps() || r.Steps() < 2 || len(losses) != r.Steps() {
				t.Fatalf("%s: rank %d has made %d steps, all %d, of which %d are reported", way, i, rank.Steps(),
					r.Steps(), len(losses))
			}
		}
		if err := r.Save(ctx, dir, nil, 1); err != nil { // although ctx has ended
			t.Fatal(way, err)
		}
		if err := r.Close(); err != nil {
			t.Error(way, err)
		}
		c := traintest.Last(t, dir)
		next := toyRanks(t, backend, way)
		if err := next.Load(t.Context(), c); err != nil || next.Steps() != len(losses) {
			t.Fatalf("%s: loaded step %d after %d, error %v", way, next.Steps(), len(losses), err)
		}
		if err := next.Train(t.Context(), steps, toyBatch, note); err != nil || len(losses) != steps {
			t.Fatalf("%s: %d losses, error %v", way, len(losses), err)
		}
		within := 1e-6
		if slices.Contains([]job.Sync{job.Naive, job.Overlap, job.Bucket}, way) {
			within = 0
		}
		if way != job.Async && (!near(losses, wantLosses, within) || !near(weights(t, next), want, within)) {
			t.Errorf("%s: losses %v and weights %v, not stopped %v and %v", way, losses, weights(t, next), wantLosses,
				want)
		}
		if err := next.Close(); err != nil {
			t.Error(way, err)
		}
	}
	for deadline := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines more than before", runtime.NumGoroutine()-before)
		}
	}
}

// What fails on one rank, or for who listens, ends all ranks with that error.
func TestRanksFail(t *testing.T) {
	backend := devicetest.Open(t, 3)
	bad := errors.New("bad")
	nothing := func(metrics) error { return nil }
	for _, way := range []job.Sync{job.Bucket, job.Async, job.Ranks, wayPipe} {
		r := toyRanks(t, backend, way)
		if err := r.Train(t.Context(), 9, toyBatch, func(metrics) error { return bad }); err != bad || r.Steps() < 1 {
			t.Errorf("%s: after a report that failed: step %d, error %v", way, r.Steps(), err)
		}
		var once atomic.Bool
		err := r.Train(t.Context(), r.Steps()+9, func(step int) (*tensors.Tensor, *tensors.Tensor, error) {
			if !once.Swap(true) {
				return nil, nil, bad
			}
			return toyBatch(step)
		}, nothing)
		if err != bad {
			t.Errorf("%s: a batch failed: %v", way, err)
		}
		if err := r.Train(t.Context(), r.Steps()+1, toyBatch, nothing); err == nil {
			t.Errorf("%s: trains on after an error", way)
		}
		if err := r.Save(t.Context(), t.TempDir(), nil, 1); err == nil {
			t.Errorf("%s: saves after an error", way)
		}
		r.Close()
	}
	r := toyRanks(t, backend, job.Bucket)
	if err := r.Save(t.Context(), "/dev/null/nowhere", nil, 1); err == nil || strings.Contains(err.Error(), "rank 0") {
		t.Errorf("saving where nothing can be: %v", err)
	}
	r.Close()
	for _, p := range []job.Parallel{{Data: 4, Sync: job.Bucket, Accumulate: 1, Every: 1}, {Data: 4, Sync: job.Ranks,
		Accumulate: 1, Every: 1,
		Zero: 3}} {
		if _, err := toyRunner(t, backend, p); err == nil || !strings.Contains(err.Error(),
			"the layout needs 4 devices, the backend has 3") {
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
		tr := &tracer{}
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
