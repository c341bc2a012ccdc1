package zero_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/zero"
)

// The toy's passes, by position, and how many of them are forward passes.
var toyPasses = []string{"in", "h0", "h1", "out", "h1", "h0", "in"}

const toyForwards = 3

// traced makes two steps of two ranks, each with its own view of the group, and returns the trace of the second.
func traced(t *testing.T, e *zero.Engine, recorder *trace.Recorder, view func(g group.Group) (group.Group, error)) trace.Trace {
	t.Helper()
	if err := group.Run(t.Context(), 2, func(ctx context.Context, inner group.Group) error {
		g, err := view(inner)
		if err != nil {
			return err
		}
		rank, err := e.Join(ctx, g, g.Rank())
		if err != nil {
			return err
		}
		for step := range 2 {
			if err := group.Barrier(ctx, inner); err != nil {
				return err
			}
			if g.Rank() == 0 {
				recorder.Take()
			}
			if err := group.Barrier(ctx, inner); err != nil {
				return err
			}
			inputs, targets := toy.Batch(step, 4)
			if _, err := rank.Step(ctx, inputs, targets); err != nil {
				return err
			}
		}
		return rank.Close()
	}); err != nil {
		t.Fatal(err)
	}
	return recorder.Take()
}

// TestTrace traces what is computed, gathered and reduced when.
func TestTrace(t *testing.T) {
	backend := devicetest.Open(t, 2)
	for _, o := range []zero.Options{{Stage: 1}, {Stage: 2}, {Stage: 3}, {Stage: 3, Prefetch: 1}, {Stage: 3, Prefetch: 2}} {
		t.Run(fmt.Sprintf("stage %d, Prefetch %d", o.Stage, o.Prefetch), func(t *testing.T) {
			recorder := trace.New()
			o.Trace = recorder
			e := engine(t, backend, train.Recipe{Model: toy.Model(false), Rule: optim.SGD(0.1)}, o)
			traceSlow(t, e, o)
			if o.Stage < 3 || o.Prefetch > 0 { // else computing waits for both
				traceHeldUp(t, e, o)
			}
		})
	}
}

// traceSlow traces a step over a slow link. Without Prefetch nothing is gathered while the rank computes, and in stage 3 no gradients are
// reduced; and at no time more blocks are gathered than the one that computes and those ahead. That computing and communication do go
// on side by side where they may is for traceHeldUp.
func traceSlow(t *testing.T, e *zero.Engine, o zero.Options) {
	ahead := o.Stage == 3 && o.Prefetch > 0
	got := traced(t, e, o.Trace, func(g group.Group) (group.Group, error) {
		return group.Slow(g, group.Link{Latency: time.Millisecond})
	})
	for rank := range 2 {
		compute := trace.Of(got.Spans, rank, trace.Compute)
		if names := namesOf(compute); !slices.Equal(names, spanNames()) {
			t.Fatalf("rank %d computes %q, want %q", rank, names, spanNames())
		}
		for stream, may := range map[string]bool{"gather": ahead, trace.Reduce: ahead || o.Stage < 3} {
			if hidden := trace.Overlap(trace.Of(got.Spans, rank, stream), compute[:len(toyPasses)]); hidden > 0 && !may {
				t.Errorf("rank %d computes while there is a %s: %.2f of it", rank, stream, hidden)
			}
		}
		checkGathered(t, o, got, rank, compute)
	}
}

func namesOf(spans []trace.Span) (names []string) {
	for _, s := range spans {
		names = append(names, s.Name)
	}
	return names
}

// spanNames are those of a step's spans of computing.
func spanNames() (names []string) {
	for i, block := range toyPasses {
		if i < toyForwards {
			names = append(names, "forward "+block)
		} else {
			names = append(names, "backward "+block)
		}
	}
	return append(names, "update")
}

// checkGathered compares the counter of gathered parameters with what a rank must have at each position: the parameters
// of the block that computes and of those ahead, each as often as it comes there.
func checkGathered(t *testing.T, o zero.Options, got trace.Trace, rank int, compute []trace.Span) {
	t.Helper()
	var counts []trace.Counter
	for _, c := range got.Counters {
		if c.Rank == rank && c.Name == "gathered parameters" {
			counts = append(counts, c)
		}
	}
	if o.Stage < 3 {
		if len(counts) > 0 {
			t.Errorf("rank %d gathers in the passes: %v", rank, counts)
		}
		return
	}
	bytes := map[string]int64{} // of a block
	for _, b := range toy.Model(false).Blocks {
		for _, s := range b.Params {
			bytes[b.Name] += int64(2 * 4 * optim.FlatLength(optim.SGD(0.1), s, 2))
		}
	}
	most := int64(0)
	for k := range toyPasses {
		want, have := int64(0), int64(0)
		for _, block := range toyPasses[k:min(len(toyPasses), k+1+o.Prefetch)] {
			want += bytes[block]
		}
		for _, c := range counts {
			if c.At <= compute[k].Start {
				have = c.Value
			}
		}
		if most = max(most, want); have != want {
			t.Errorf("rank %d: as %s begins %d bytes are gathered, want %d", rank, compute[k].Name, have, want)
		}
	}
	for _, c := range counts {
		if c.Value > most || c.Value < 0 {
			t.Errorf("rank %d: %d bytes are gathered, want at most %d", rank, c.Value, most)
		}
	}
	if last := counts[len(counts)-1]; last.Value != 0 {
		t.Errorf("rank %d: %d bytes are gathered at the end of the step", rank, last.Value)
	}
}

// traceHeldUp holds every gather up until the pass before the one that needs it has been computed, and every reduction until the
// pass after it has: a step ends only if computing waits for neither.
func traceHeldUp(t *testing.T, e *zero.Engine, o zero.Options) {
	got := traced(t, e, o.Trace, func(g group.Group) (group.Group, error) {
		return &heldUp{Group: g, recorder: o.Trace, gathers: o.Stage == 3}, nil
	})
	for rank := range 2 {
		compute, reduce := trace.Of(got.Spans, rank, trace.Compute), trace.Of(got.Spans, rank, trace.Reduce)
		if len(reduce) != len(toyPasses)-toyForwards {
			t.Fatalf("rank %d: %d reductions, want one for each block", rank, len(reduce))
		}
		for n, s := range reduce[:len(reduce)-1] {
			if s.End < compute[toyForwards+n+1].End {
				t.Errorf("rank %d: the reduction of %s was not held up", rank, s.Name)
			}
		}
	}
}

// heldUp is a rank's view of a group in which calls wait for the rank's passes.
type heldUp struct {
	group.Group
	recorder *trace.Recorder
	gathers  bool // in the passes: at their place, one for each
	gathered int
	reduced  int
}

func (h *heldUp) Do(ctx context.Context, call group.Call) error {
	passes := len(toyPasses)
	wait := 0 // for so many passes of this step
	switch {
	case call.Kind == group.KindAllGather && h.gathers:
		wait = h.gathered % passes // for those before
		h.gathered++
	case call.Kind == group.KindReduceScatter:
		backward := passes - toyForwards
		wait = min(passes, toyForwards+h.reduced%backward+2) // for its own and the one behind
		h.reduced++
	}
	for begun := time.Now(); len(trace.Of(h.recorder.Spans(), h.Rank(), trace.Compute)) < wait; time.Sleep(100 * time.Microsecond) {
		if time.Since(begun) > 20*time.Second {
			return errors.New("computing waits for it")
		}
	}
	return h.Group.Do(ctx, call)
}
