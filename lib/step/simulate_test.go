package step

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// randomCosts are whole numbers for each stage, some of them 0, with quarters as the shares that are kept, so that all
// sums are exact.
func randomCosts(random *rand.Rand, stages int) Costs {
	list := func(most int, unit float64) (values []float64) {
		for range stages {
			values = append(values, unit*float64(random.IntN(most+1)))
		}
		return values
	}
	c := Costs{Forward: list(5, 1), InputGrad: list(5, 1), WeightGrad: list(5, 1), Update: list(3, 1), Activation: list(6, 1), Kept: list(4, 0.25)}
	if random.IntN(2) == 0 {
		c.Backward = list(9, 1)
	}
	if salt := random.IntN(4); salt > 0 {
		c.Link = func(from, to int) float64 { return float64((salt*from + 3*to) % 5) }
	}
	return c
}

// dumbEnds gives the end of each operation by going over all of them until nothing changes, looking for inputs in the
// lists.
func dumbEnds(p *Plan, c Costs) [][]float64 {
	ends := make([][]float64, len(p.Ranks))
	for r, list := range p.Ranks {
		ends[r] = make([]float64, len(list))
	}
	for changed := true; changed; {
		changed = false
		for r, list := range p.Ranks {
			for i, a := range list {
				start := 0.0
				if i > 0 {
					start = ends[r][i-1]
				}
				for q, others := range p.Ranks {
					for j, b := range others {
						gives := b.Micro == a.Micro && (a.Kind == Forward && b.Kind == Forward && b.Block == a.Block-1 ||
							(a.Kind == Backward || a.Kind == InputGrad) && (b.Kind == Backward || b.Kind == InputGrad) && b.Block == a.Block+1)
						adds := a.Kind == Update && b.Block == a.Unit && (b.Kind == Backward || b.Kind == WeightGrad) &&
							b.Micro <= a.Micro && b.Micro > a.Micro-p.Every
						if gives || adds {
							at := ends[q][j]
							if q != r && c.Link != nil {
								at += c.Link(q, r)
							}
							start = max(start, at)
						}
					}
				}
				if end := start + c.Took(a); end != ends[r][i] {
					ends[r][i], changed = end, true
				}
			}
		}
	}
	return ends
}

// dumbMemory is the most that a rank holds, looked for at the start of each forward pass.
func dumbMemory(p *Plan, c Costs, r int) (count int, memory float64) {
	for i := range p.Ranks[r] {
		held := map[[2]int]float64{}
		for j, a := range p.Ranks[r][:i+1] {
			key, size := [2]int{a.Block, a.Micro}, of(c.Activation, a.Block, 1)
			switch {
			case a.Kind == Forward:
				held[key] = size
			case j == i: // has not ended
			case a.Kind == InputGrad:
				held[key] = size * of(c.Kept, a.Block, 1)
			case a.Kind == Backward || a.Kind == WeightGrad:
				delete(held, key)
			}
		}
		sum := 0.0
		for _, size := range held {
			sum += size
		}
		count, memory = max(count, len(held)), max(memory, sum)
	}
	return count, memory
}

// TestSimulateRandom compares random schedules at random costs with the dumb ones, exactly.
func TestSimulateRandom(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for range 400 {
		s := randomSchedule(random)
		for r, list := range s.Ranks { // an update of each unit
			all := slices.DeleteFunc(slices.Clone(list), func(op Op) bool { return op.Kind == Update && op.Unit < 0 })
			for _, u := range s.UnitsOn(r) {
				all = append(all, Op{Kind: Update, Unit: u, Micro: s.Micro - 1})
			}
			if len(s.UnitsOn(r)) > 0 && list[len(list)-1].Unit < 0 {
				s.Ranks[r] = all
			}
		}
		c := randomCosts(random, len(s.Blocks))
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
				if span.Op != list[i] || span.Rank != r || span.End != ends[r][i] || span.Start != ends[r][i]-c.Took(list[i]) {
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

// TestSimulateErrors checks what is refused, and that the reason is said.
func TestSimulateErrors(t *testing.T) {
	good, bad := parsed(t, small), parsed(t, small)
	slices.Reverse(bad.Ranks[1])
	for _, test := range []struct {
		p    *Plan
		c    Costs
		want string
	}{
		{bad, Equal(), "step"},
		{&Plan{}, Equal(), "step"},
		{good, Costs{Forward: []float64{1, 2, 3}}, "Costs.Forward has 3 values for 2"},
		{good, Costs{Backward: []float64{-1}}, "Costs.Backward has the value -1"},
		{good, Costs{Update: []float64{math.NaN()}}, "Costs.Update has the value NaN"},
		{good, Costs{Activation: []float64{math.Inf(1)}}, "Costs.Activation has the value +Inf"},
		{good, Costs{Kept: []float64{1.5}}, "Costs.Kept has the value 1.5: give one from 0 to 1"},
		{good, Costs{Link: func(int, int) float64 { return -1 }}, "Costs.Link(0, 1) is -1"},
	} {
		if _, err := test.p.Simulate(test.c); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("got error %v, want %q", err, test.want)
		}
	}
}

// TestSimulateZero has passes that take no time, and a rank with nothing to do.
func TestSimulateZero(t *testing.T) {
	s := parsed(t, "schedule gpipe\nrank 0: 0F0 0F1 0B0 0B1 0U1")
	none := []float64{0}
	timeline := simulated(t, s, Costs{Forward: none, Backward: none})
	if timeline.StepTime != 0 || timeline.Bubble != 0 || timeline.PeakMemory[0] != 2 || fmt.Sprint(timeline) == "" {
		t.Errorf("%+v", timeline)
	}
}

func simulated(t *testing.T, p *Plan, c Costs) Timeline {
	t.Helper()
	timeline, err := p.Simulate(c)
	if err != nil {
		t.Fatalf("%v%v", p, err)
	}
	return timeline
}

// TestSimulatePlans compares random plans of all kinds of operations, at random costs, with the second checker's clock.
func TestSimulatePlans(t *testing.T) {
	random := rand.New(rand.NewPCG(11, 12))
	for range 1500 {
		p := randomPlan(random)
		c := randomCosts(random, len(p.Blocks))
		salt := random.IntN(5)
		c.Transfer = func(op Op) float64 { return float64((int(op.Kind) + salt*op.Unit + op.Block) % 4) }
		timeline := simulated(t, p, c)
		d := &dumb{Plan: p, costs: c}
		if !d.play() {
			t.Fatalf("%vthe second checker refuses it", p)
		}
		for r, list := range p.Ranks {
			passes := timeline.Of(r)
			for i, op := range list {
				if op.Kind.Pass() {
					if passes[0].Op != op || passes[0].End != d.ends[r][i] {
						t.Fatalf("%vrank %d, position %d: %+v, want the end %v", p, r, i, passes[0], d.ends[r][i])
					}
					passes = passes[1:]
				} else if op.beside() {
					at := slices.IndexFunc(timeline.Transfers, func(s Span) bool { return s.Rank == r && s.Op == op && s.End == d.ends[r][i] })
					if at < 0 && op.Kind != Send {
						t.Fatalf("%vrank %d, position %d: %v does not end at %v: %+v", p, r, i, p.Text(op), d.ends[r][i], timeline.Transfers)
					}
				}
			}
		}
	}
}
