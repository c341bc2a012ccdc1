package zero_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/zero"
)

// The toy's passes, by block, and how many of them are forward passes.
var toyPasses = []int{0, 1, 2, 3, 3, 2, 1, 0}

const toyForwards = 4

// traced makes two steps of two ranks, each with its own view of the group, and returns the trace of the second.
func traced(t *testing.T, o zero.Options, view func(g group.Group) (group.Group, error)) trace.Trace {
	t.Helper()
	backend, r := devicetest.Open(t, 8), train.Recipe{Model: toy.Model(false), Optimizer: optim.SGD(0.1)}
	must.Do(t, group.Run(t.Context(), 2, func(ctx context.Context, inner group.Group) error {
		g, err := view(inner)
		if err != nil {
			return err
		}
		one, err := zero.Join(ctx, g, backend, g.Rank(), r, o)
		if err != nil {
			return err
		}
		for step := range 2 {
			if err := group.Barrier(ctx, inner); err != nil {
				return err
			}
			if g.Rank() == 0 {
				o.Trace.Take()
			}
			if err := group.Barrier(ctx, inner); err != nil {
				return err
			}
			inputs, targets := toy.Batch(step, 4)
			if _, err := one.Step(ctx, inputs, targets); err != nil {
				return err
			}
		}
		return one.Close()
	}))
	return o.Trace.Take()
}

// TestTrace checks when blocks are computed, gathered and reduced. Over a slow link, without Prefetch, nothing is
// gathered while the rank computes, and in stage 3 no gradients are reduced; at no time are more blocks gathered than
// Prefetch allows. If each gather is held up until the pass before the one that needs it is done, and each reduction
// until the pass after it is, a step ends only if computing waits for neither.
func TestTrace(t *testing.T) {
	for _, o := range []zero.Options{{Stage: 1}, {Stage: 2}, {Stage: 3}, {Stage: 3, Prefetch: 1},
		{Stage: 3, Prefetch: 2}} {
		t.Run(fmt.Sprintf("stage %d, Prefetch %d", o.Stage, o.Prefetch), func(t *testing.T) {
			o.Trace = trace.New()
			waits := o.Stage == 3 && o.Prefetch == 0
			got := traced(t, o, func(g group.Group) (group.Group, error) {
				return group.Slow(g, group.Link{Latency: time.Millisecond})
			})
			for rank := range 2 {
				compute := trace.Of(got.Spans, rank, trace.Compute)
				if n := len(toyPasses) + 1; len(compute) != n {
					t.Fatalf("rank %d computes %d times, want %d", rank, len(compute), n)
				}
				for stream, may := range map[string]bool{trace.Gather: o.Prefetch > 0, trace.Reduce: !waits} {
					if hidden := trace.Overlap(trace.Of(got.Spans, rank, stream),
						compute[:len(toyPasses)]); hidden > 0 && !may {
						t.Errorf("rank %d computes while there is a %s: %.2f of it", rank, stream, hidden)
					}
				}
				if o.Stage == 3 {
					checkGathered(t, o.Prefetch, got, rank, compute)
				}
			}
			if waits {
				return
			}
			got = traced(t, o, func(g group.Group) (group.Group, error) {
				return &heldUp{Group: g, recorder: o.Trace, gathers: gathersOf(t, o)}, nil
			})
			for rank := range 2 {
				compute, reduce := trace.Of(got.Spans, rank, trace.Compute), trace.Of(got.Spans, rank, trace.Reduce)
				if len(reduce) != len(toyPasses)-toyForwards {
					t.Fatalf("rank %d: %d reductions, want one for each block", rank, len(reduce))
				}
				for n, s := range reduce[:len(reduce)-1] {
					if s.End < compute[toyForwards+n+1].End {
						t.Errorf("rank %d: the reduction %s was not held up", rank, s.Name)
					}
				}
			}
		})
	}
}

// checkGathered compares the counter of gathered parameters with what a rank must have at each pass: the parameters of
// the block that computes and of those ahead, each once.
func checkGathered(t *testing.T, ahead int, got trace.Trace, rank int, compute []trace.Span) {
	t.Helper()
	last := int64(0)
	for k := range toyPasses {
		blocks := slices.Clone(toyPasses[k:min(len(toyPasses), k+1+ahead)])
		slices.Sort(blocks)
		want := int64(0)
		for _, block := range slices.Compact(blocks) {
			for _, s := range toy.Model(false).Blocks[block].Params {
				want += int64(2 * 4 * optim.FlatLength(optim.SGD(0.1), s, 2))
			}
		}
		have := int64(0)
		for _, c := range got.Counters {
			if c.Rank == rank && c.Name == string(memest.Communication) {
				if last = c.Value; c.At <= compute[k].Start {
					have = c.Value
				}
			}
		}
		if have != want {
			t.Errorf("rank %d: as pass %d begins %d bytes are gathered, want %d", rank, k, have, want)
		}
	}
	if last != 0 {
		t.Errorf("rank %d: %d bytes are gathered at the end of the step", rank, last)
	}
}

// gathersOf lists, of stage 3, how many passes come before the one that needs each gather.
func gathersOf(t *testing.T, o zero.Options) (passes []int) {
	t.Helper()
	p := must.Get(o.Plan(train.Recipe{Model: toy.Model(false), Optimizer: optim.SGD(0.1)}, 2))(t)
	for i, op := range p.Ranks[0] {
		if op.Kind != step.Gather || o.Stage < 3 {
			continue
		}
		n := 0
		for k, other := range p.Ranks[0] {
			if !other.Kind.Pass() {
				continue
			}
			if k > i && slices.Contains(p.Blocks[other.Block].Units, op.Unit) {
				break
			}
			n++
		}
		passes = append(passes, n)
	}
	return passes
}

// heldUp is a rank's view of a group in which calls wait for the rank's passes.
type heldUp struct {
	group.Group
	recorder *trace.Recorder
	gathers  []int // how many passes each waits for, in stage 3
	gathered int
	reduced  int
}

func (h *heldUp) Do(ctx context.Context, call group.Call) error {
	wait := 0 // passes of this step
	switch {
	case call.Kind == group.KindAllGather && len(h.gathers) > 0:
		wait = h.gathers[h.gathered%len(h.gathers)]
		h.gathered++
	case call.Kind == group.KindReduceScatter: // for its own and the one behind
		wait = min(len(toyPasses), toyForwards+h.reduced%(len(toyPasses)-toyForwards)+2)
		h.reduced++
	}
	done := func() int { return len(trace.Of(h.recorder.Spans(), h.Rank(), trace.Compute)) }
	for begun := time.Now(); done() < wait; time.Sleep(100 * time.Microsecond) {
		if time.Since(begun) > 20*time.Second {
			return errors.New("computing waits for it")
		}
	}
	return h.Group.Do(ctx, call)
}
