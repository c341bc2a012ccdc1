package pipeline_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/step"
)

// some returns a random named schedule of at most these sizes.
func some(rng *rand.Rand, ranks, microbatches int) *step.Plan {
	for {
		kind := pipeline.Kinds()[rng.IntN(len(pipeline.Kinds()))]
		v := 1
		if kind.Chunked() {
			v += rng.IntN(3)
		}
		if s, err := pipeline.NewSchedule(kind, 1+rng.IntN(ranks), 1+rng.IntN(microbatches), v); err == nil {
			return s
		}
	}
}

// TestCheckLarge tries larger sizes than TestBubble.
func TestCheckLarge(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 150 {
		s := some(rng, 16, 64)
		if err := s.Check(); err != nil {
			t.Errorf("%s, %d ranks, %d micro-batches: %v", s.Name, len(s.Ranks), s.Micro, err)
		}
	}
}

// repeated is a schedule whose ranks repeat their passes, with nothing between, and update at the end.
func repeated(s *step.Plan, times int) *step.Plan {
	all := *s
	all.Micro, all.Every, all.Ranks = s.Micro*times, s.Micro*times, make([][]step.Op, len(s.Ranks))
	for r, list := range s.Ranks {
		for k := range times {
			for _, op := range list {
				op.Micro += k * s.Micro
				if op.Kind != step.Update || k == times-1 {
					all.Ranks[r] = append(all.Ranks[r], op)
				}
			}
		}
	}
	return &all
}

// TestStepTimeIsThePeriod simulates steps one after the other: at equal costs they follow each other every StepTime,
// and never more slowly at others.
func TestStepTimeIsThePeriod(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	const steps = 8
	period := func(s *step.Plan, c step.Costs) float64 {
		return simulated(t, repeated(s, steps+1), c).Makespan - simulated(t, repeated(s, steps), c).Makespan
	}
	sizes(pipeline.Kinds(), 4, 8, 2, func(kind pipeline.Kind, d, m, v int, s *step.Plan, have bool) {
		if !have || !kind.Synchronous() {
			return
		}
		single := simulated(t, s, step.Equal())
		if got := period(s, step.Equal()); got != single.StepTime {
			t.Errorf("%s, %d ranks, %d micro-batches, %d chunks: steps follow every %v, StepTime is %v", kind, d, m, v,
				got, single.StepTime)
		}
		c := randomCosts(random, len(s.Blocks))
		c.Update = nil
		if got, most := period(s, c), simulated(t, s, c).StepTime; got > most {
			t.Errorf("%s, %d ranks, %d micro-batches, %d chunks: steps follow every %v, StepTime is %v", kind, d, m, v,
				got, most)
		}
	})
}

// TestBubble compares simulated schedules with the closed forms, in units of a third of a rank's time for a
// micro-batch. All named schedules can run, in every small size.
func TestBubble(t *testing.T) {
	sizes(pipeline.Kinds(), 7, 15, 3, func(kind pipeline.Kind, d, m, v int, s *step.Plan, have bool) {
		idle, total, ok := pipeline.Bubble(kind, d, m, v)
		if want := have && kind.Synchronous(); ok != want {
			t.Fatalf("%s, %d ranks, %d micro-batches, %d chunks: a formula is there: %v, want %v", kind, d, m, v, ok,
				want)
		}
		if !have {
			return
		}
		timeline, err := s.SimulateShares(step.Equal()) // which checks it
		if err != nil {
			t.Fatalf("%s, %d ranks, %d micro-batches, %d chunks: %v", kind, d, m, v, err)
		}
		if !ok {
			return
		}
		if want := 3 * float64(m*total) / float64(total-idle); math.Abs(timeline.StepTime-want) > 1e-12*want {
			t.Errorf("%s, %d ranks, %d micro-batches, %d chunks: a step takes %v, want %v", kind, d, m, v,
				timeline.StepTime, want)
		}
		if want := float64(idle) / float64(total); math.Abs(timeline.Bubble-want) > 1e-12 {
			t.Errorf("%s, %d ranks, %d micro-batches, %d chunks: bubble %v, want %v", kind, d, m, v, timeline.Bubble,
				want)
		}
	})
}

// TestSimulateShares: a rank's share of the model in three parts, each of which takes a third.
func TestSimulateShares(t *testing.T) {
	s := must.Get(pipeline.Interleaved(4, 8, 3))(t)
	slow := step.Costs{Link: func(int, int) float64 { return 2 }, Forward: []float64{1, 2, 3, 4}}
	parts := step.Costs{Link: func(int, int) float64 { return 6 }, Forward: []float64{1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4,
		4}}
	shares := must.Get(s.SimulateShares(slow))(t)
	if whole := simulated(t, s, parts); shares.StepTime != whole.StepTime/3 || shares.Makespan != whole.Makespan/3 ||
		shares.Spans[5].End != whole.Spans[5].End/3 {
		t.Errorf("step %v, makespan %v; want a third of %v and %v", shares.StepTime, shares.Makespan, whole.StepTime,
			whole.Makespan)
	}
}
