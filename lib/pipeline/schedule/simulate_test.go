package schedule

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// TestSimulateRandom compares random schedules at random costs with the dumb ones, exactly.
func TestSimulateRandom(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for range 400 {
		s := randomSchedule(random)
		c := randomCosts(random, s.Stages)
		timeline, err := s.Simulate(c)
		if err != nil {
			t.Fatalf("%v: %v", s, err)
		}
		ends := dumbEnds(s, c)
		makespan, step, busy := 0.0, 0.0, 0.0
		for r, list := range s.Ranks {
			spans := timeline.Of(r)
			if len(spans) != len(list) {
				t.Fatalf("%v: rank %d has %d spans of %d actions", s, r, len(spans), len(list))
			}
			for i, span := range spans {
				if span.Action != list[i] || span.Rank != r || span.End != ends[r][i] || span.Start != ends[r][i]-c.Took(list[i]) {
					t.Fatalf("%v: %+v of rank %d, want an end at %v", s, span, r, ends[r][i])
				}
				busy += span.End - span.Start
			}
			if n := len(spans); n > 0 {
				makespan, step = max(makespan, spans[n-1].End), max(step, spans[n-1].End-spans[0].Start)
			}
			count, memory := dumbMemory(s, c, r)
			most := 0.0
			for _, l := range timeline.Memory[r] {
				most = max(most, l.Held)
			}
			if timeline.PeakActivations[r] != count || timeline.PeakMemory[r] != memory || most > memory {
				t.Errorf("%v: rank %d holds %d and %v, at most %v over time; want %d and %v", s, r, timeline.PeakActivations[r],
					timeline.PeakMemory[r], most, count, memory)
			}
		}
		bubble := 0.0
		if step > 0 {
			bubble = 1 - busy/step/float64(len(s.Ranks))
		}
		if timeline.Makespan != makespan || timeline.StepTime != step || math.Abs(timeline.Bubble-bubble) > 1e-12 {
			t.Errorf("%v: makespan %v, step %v, bubble %v; want %v, %v, %v", s, timeline.Makespan, timeline.StepTime, timeline.Bubble, makespan, step, bubble)
		}
	}
}

// repeated is a schedule whose ranks go through their lists so many times, with nothing between.
func repeated(s Schedule, times int) Schedule {
	all := s
	all.Microbatches, all.Ranks = s.Microbatches*times, make([][]Action, len(s.Ranks))
	for r, list := range s.Ranks {
		for k := range times {
			for _, a := range list {
				a.Microbatch += k * s.Microbatches
				all.Ranks[r] = append(all.Ranks[r], a)
			}
		}
	}
	return all
}

// TestStepTimeIsThePeriod simulates steps one after the other: at equal costs they follow each other every StepTime, and
// never more slowly at others.
func TestStepTimeIsThePeriod(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	const steps = 8
	period := func(s Schedule, c Costs) float64 {
		var ends []float64
		for _, times := range []int{steps, steps + 1} {
			n, err := newNetwork(repeated(s, times), c)
			if err != nil {
				t.Fatal(err)
			}
			k := newClock(n)
			if !k.play(n.orders) {
				t.Fatalf("%s waits for ever", s.Name)
			}
			ends = append(ends, slices.Max(k.end))
		}
		return ends[1] - ends[0]
	}
	sizes(Kinds(), 5, 8, 2, func(kind Kind, d, m, v int, s Schedule, have bool) {
		if !have || !kind.Synchronous() {
			return
		}
		single := simulated(t, s, Equal())
		if got := period(s, Equal()); got != single.StepTime {
			t.Errorf("%s, %d ranks, %d micro-batches, %d chunks: steps follow every %v, StepTime is %v", kind, d, m, v, got, single.StepTime)
		}
		c := randomCosts(random, s.Stages)
		if got, most := period(s, c), simulated(t, s, c).StepTime; got > most {
			t.Errorf("%s, %d ranks, %d micro-batches, %d chunks: steps follow every %v, StepTime is %v", kind, d, m, v, got, most)
		}
	})
}

func simulated(t *testing.T, s Schedule, c Costs) Timeline {
	t.Helper()
	timeline, err := s.Simulate(c)
	if err != nil {
		t.Fatalf("%s: %v", s.Name, err)
	}
	return timeline
}

// TestSimulateShares compares kinds that cut a rank's share with the closed forms, whose unit is a rank's share: a rank
// computes for 3 of each micro-batch, exactly, whatever the number of chunks.
func TestSimulateShares(t *testing.T) {
	sizes(Kinds(), 6, 12, 3, func(kind Kind, d, m, v int, s Schedule, have bool) {
		idle, total, ok := Bubble(kind, d, m, v)
		if !have || !ok {
			return
		}
		timeline, err := s.SimulateShares(Equal())
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
	s, err := Interleaved(4, 8, 3)
	if err != nil {
		t.Fatal(err)
	}
	slow := Costs{Link: func(int, int) float64 { return 2 }, Forward: []float64{1, 2, 3, 4}}
	parts := Costs{Link: func(int, int) float64 { return 6 }, Forward: []float64{1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4}}
	shares, err := s.SimulateShares(slow)
	if err != nil {
		t.Fatal(err)
	}
	if whole := simulated(t, s, parts); shares.StepTime != whole.StepTime/3 || shares.Makespan != whole.Makespan/3 || shares.Spans[5].End != whole.Spans[5].End/3 {
		t.Errorf("step %v, makespan %v; want a third of %v and %v", shares.StepTime, shares.Makespan, whole.StepTime, whole.Makespan)
	}
}

// TestSimulateErrors checks what is refused, and that the reason is said.
func TestSimulateErrors(t *testing.T) {
	good, err := OneFOneB(2, 2)
	if err != nil {
		t.Fatal(err)
	}
	bad := good
	bad.Ranks = [][]Action{good.Ranks[0], slices.Clone(good.Ranks[1])}
	slices.Reverse(bad.Ranks[1])
	for _, test := range []struct {
		s    Schedule
		c    Costs
		want string
	}{
		{bad, Equal(), "schedule"},
		{Schedule{}, Equal(), "schedule"},
		{good, Costs{Forward: []float64{1, 2, 3}}, "Costs.Forward has 3 values for 2 stages"},
		{good, Costs{Backward: []float64{-1}}, "Costs.Backward has the value -1"},
		{good, Costs{Update: []float64{math.NaN()}}, "Costs.Update has the value NaN"},
		{good, Costs{Activation: []float64{math.Inf(1)}}, "Costs.Activation has the value +Inf"},
		{good, Costs{Kept: []float64{1.5}}, "Costs.Kept has the value 1.5: give one from 0 to 1"},
		{good, Costs{Link: func(int, int) float64 { return -1 }}, "Costs.Link(1, 0) is -1"},
	} {
		if _, err := test.s.Simulate(test.c); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("got error %v, want %q", err, test.want)
		}
	}
}

// TestSimulateZero has passes that take no time, and a rank with nothing to do.
func TestSimulateZero(t *testing.T) {
	s, err := GPipe(1, 2)
	if err != nil {
		t.Fatal(err)
	}
	none := []float64{0}
	timeline := simulated(t, s, Costs{Forward: none, Backward: none})
	if timeline.StepTime != 0 || timeline.Bubble != 0 || timeline.PeakMemory[0] != 2 || fmt.Sprint(timeline) == "" {
		t.Errorf("%+v", timeline)
	}
}
