package pipeline_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/step"
)

// TestCheckKinds: all named schedules can be run, in every small size.
func TestCheckKinds(t *testing.T) {
	sizes(pipeline.Kinds(), 6, 12, 3, func(kind pipeline.Kind, d, m, v int, s *step.Plan, have bool) {
		if !have {
			return
		}
		if err := s.Check(); err != nil {
			t.Errorf("%s, %d ranks, %d micro-batches, %d chunks: %v", kind, d, m, v, err)
		}
		if d <= 3 && m <= 6 && !dumbValid(s) {
			t.Errorf("%s, %d ranks, %d micro-batches, %d chunks: the second checker refuses it", kind, d, m, v)
		}
	})
}

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

// mutate changes a schedule a little.
func mutate(rng *rand.Rand, s *step.Plan) (what string) {
	r := rng.IntN(len(s.Ranks))
	list := s.Ranks[r]
	i := rng.IntN(len(list))
	j := rng.IntN(len(list))
	if rng.IntN(2) == 0 { // close by, where more stays possible
		j = min(i+1+rng.IntN(3), len(list)-1)
	}
	switch kind := rng.IntN(8); kind {
	case 0:
		s.Ranks[r] = slices.Delete(slices.Clone(list), i, i+1)
		return fmt.Sprintf("rank %d without %v", r, list[i])
	case 1:
		s.Ranks[r] = slices.Insert(slices.Clone(list), j, list[i])
		return fmt.Sprintf("rank %d with %v twice", r, list[i])
	case 2, 3:
		list[i], list[j] = list[j], list[i]
		return fmt.Sprintf("rank %d with %v and %v exchanged", r, list[i], list[j])
	case 4, 5:
		a := list[i]
		s.Ranks[r] = slices.Insert(slices.Delete(slices.Clone(list), i, i+1), min(j, len(list)-1), a)
		return fmt.Sprintf("rank %d with %v moved to %d", r, a, j)
	case 6:
		to := rng.IntN(len(s.Ranks))
		s.Ranks[to] = append(s.Ranks[to], list[i])
		return fmt.Sprintf("%v of rank %d on %d too", list[i], r, to)
	default:
		s.Weights = []step.Weights{step.Flush, step.Stash, step.Vertical, step.Double}[rng.IntN(4)]
		return "with weights " + string(s.Weights)
	}
}

// TestCheckMutations: what a change makes of a schedule is refused just where a second checker refuses it.
func TestCheckMutations(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	good, bad := 0, 0
	for range 6000 {
		s := some(rng, 4, 8)
		before := s.String()
		what := mutate(rng, s)
		if rng.IntN(4) == 0 && len(s.Ranks[0]) > 0 && slices.IndexFunc(s.Ranks, func(l []step.Op) bool { return len(l) == 0 }) < 0 {
			what += ", " + mutate(rng, s)
		}
		err := s.Check()
		if err == nil {
			good++
		} else {
			bad++
		}
		if want := dumbValid(s); (err == nil) != want {
			t.Fatalf("%s%s: Check says %v, the second checker %v\n%v", before, what, err, want, s)
		}
	}
	if good < 500 || bad < 500 {
		t.Errorf("%d schedules were good and %d bad: the test needs both", good, bad)
	}
}

// TestCheckLarge tries larger sizes than TestCheckKinds.
func TestCheckLarge(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 150 {
		s := some(rng, 16, 64)
		if err := s.Check(); err != nil {
			t.Errorf("%s, %d ranks, %d micro-batches: %v", s.Name, len(s.Ranks), s.Micro, err)
		}
	}
}

// repeated is a schedule whose ranks go through their passes so many times, with nothing between, and update at the
// end.
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
			t.Errorf("%s, %d ranks, %d micro-batches, %d chunks: steps follow every %v, StepTime is %v", kind, d, m, v, got, single.StepTime)
		}
		c := randomCosts(random, len(s.Blocks))
		c.Update = nil
		if got, most := period(s, c), simulated(t, s, c).StepTime; got > most {
			t.Errorf("%s, %d ranks, %d micro-batches, %d chunks: steps follow every %v, StepTime is %v", kind, d, m, v, got, most)
		}
	})
}

// TestSimulateShares compares kinds that cut a rank's share with the closed forms, whose unit is a rank's share: a rank
// computes for 3 of each micro-batch, exactly, whatever the number of chunks.
func TestSimulateShares(t *testing.T) {
	sizes(pipeline.Kinds(), 6, 12, 3, func(kind pipeline.Kind, d, m, v int, s *step.Plan, have bool) {
		idle, total, ok := pipeline.Bubble(kind, d, m, v)
		if !have || !ok {
			return
		}
		timeline, err := s.SimulateShares(step.Equal())
		if err != nil {
			t.Fatal(err)
		}
		if want := 3 * float64(m*total) / float64(total-idle); math.Abs(timeline.StepTime-want) > 1e-12*want {
			t.Errorf("%s, %d ranks, %d micro-batches, %d chunks: a step takes %v, want %v", kind, d, m, v, timeline.StepTime, want)
		}
		if want := float64(idle) / float64(total); math.Abs(timeline.Bubble-want) > 1e-12 {
			t.Errorf("%s, %d ranks, %d micro-batches, %d chunks: bubble %v, want %v", kind, d, m, v, timeline.Bubble, want)
		}
	})
	s, err := pipeline.Interleaved(4, 8, 3)
	if err != nil {
		t.Fatal(err)
	}
	slow := step.Costs{Link: func(int, int) float64 { return 2 }, Forward: []float64{1, 2, 3, 4}}
	parts := step.Costs{Link: func(int, int) float64 { return 6 }, Forward: []float64{1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4}}
	shares, err := s.SimulateShares(slow)
	if err != nil {
		t.Fatal(err)
	}
	if whole := simulated(t, s, parts); shares.StepTime != whole.StepTime/3 || shares.Makespan != whole.Makespan/3 || shares.Spans[5].End != whole.Spans[5].End/3 {
		t.Errorf("step %v, makespan %v; want a third of %v and %v", shares.StepTime, shares.Makespan, whole.StepTime, whole.Makespan)
	}
}

// TestMessages counts the messages between ranks: each boundary of stages that is one of ranks has an activation and a
// gradient for each micro-batch.
func TestMessages(t *testing.T) {
	sizes(pipeline.Kinds(), 4, 9, 3, func(kind pipeline.Kind, d, m, v int, s *step.Plan, have bool) {
		if !have {
			return
		}
		q, err := s.WithMessages()
		if err != nil {
			t.Fatal(err)
		}
		boundaries := len(s.Blocks) - 1
		if kind == pipeline.KindZBV {
			boundaries-- // at the V's turn both stages are on the last rank
		}
		sends := 0
		for _, op := range slices.Concat(q.Ranks...) {
			if op.Kind == step.Send {
				sends++
			}
		}
		if want := 2 * m * boundaries; sends != want && d > 1 {
			t.Errorf("%s, %d ranks, %d micro-batches, %d chunks: %d messages, want %d", kind, d, m, v, sends, want)
		}
	})
}
