package step

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// randomCosts are integers for each stage, some of them 0, and quarters as fractions after InputGrad, so that all sums
// are exact.
func randomCosts(random *rand.Rand, stages int) Costs {
	list := func(most int, unit float64) (values []float64) {
		for range stages {
			values = append(values, unit*float64(random.IntN(most+1)))
		}
		return values
	}
	c := Costs{Forward: list(5, 1), InputGrad: list(5, 1), WeightGrad: list(5, 1), Update: list(3, 1),
		Activation: list(6, 1), Kept: list(4, 0.25)}
	if random.IntN(2) == 0 {
		c.Backward = list(9, 1)
	}
	if salt := random.IntN(4); salt > 0 {
		c.Link = func(from, to int) float64 { return float64((salt*from + 3*to) % 5) }
	}
	return c
}

// dumbMemory finds a rank's peak by looking at the start of each pass.
func dumbMemory(p *Plan, c Costs, r int) (count int, memory float64) {
	for i := range p.Ranks[r] {
		held := map[[2]int]float64{}
		for j, a := range p.Ranks[r][:i+1] {
			key, size := [2]int{a.Block, a.Micro}, of(c.Activation, a.Block, 1)
			again := Op{Kind: Recompute, Block: a.Block, Micro: a.Micro}
			switch {
			case a.Kind == Recompute, a.Kind == Forward && !slices.Contains(p.Ranks[r], again):
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

// TestSimulateRandom compares random plans at random costs, with their messages or without, with the second checker's
// clock, exactly.
func TestSimulateRandom(t *testing.T) {
	random := rand.New(rand.NewPCG(11, 12))
	for n := range 1500 {
		p := randomPlan(random)
		if n%3 == 0 {
			p = randomSchedule(random)
		}
		c := randomCosts(random, len(p.Blocks))
		salt := random.IntN(5)
		c.Transfer = func(op Op) float64 { return float64((int(op.Kind) + salt*op.Unit + op.Block) % 4) }
		timeline := simulated(t, p, c)
		if q, err := p.WithMessages(); err == nil {
			p = q
		}
		d := &dumb{Plan: p, costs: c}
		if !d.play() {
			t.Fatalf("%vthe second checker refuses it", p)
		}
		makespan, step, busy := 0.0, 0.0, 0.0
		for r, list := range p.Ranks {
			passes := timeline.Of(r)
			if n := len(passes); n > 0 {
				makespan, step = max(makespan, passes[n-1].End), max(step, passes[n-1].End-passes[0].Start)
			}
			for i, op := range list {
				if d.r = r; op.Kind.Pass() {
					if s := passes[0]; s.Op != op || s.Rank != r || s.End != d.ends[r][i] ||
						s.Start != s.End-d.takes(op) {
						t.Fatalf("%vrank %d, position %d: %+v, want the end %v", p, r, i, s, d.ends[r][i])
					}
					busy += d.takes(op)
					passes = passes[1:]
				} else if op.beside() && op.Kind != Send {
					at := slices.IndexFunc(timeline.Transfers,
						func(s Span) bool { return s.Rank == r && s.Op == op && s.End == d.ends[r][i] })
					if at < 0 {
						t.Fatalf("%vrank %d, position %d: %v does not end at %v: %+v", p, r, i, p.Text(op),
							d.ends[r][i], timeline.Transfers)
					}
				}
			}
			count, memory := dumbMemory(p, c, r)
			most := 0.0
			for _, l := range timeline.Memory[r] {
				most = max(most, l.Held)
			}
			if timeline.PeakActivations[r] != count || timeline.PeakMemory[r] != memory || most > memory ||
				len(passes) > 0 {
				t.Fatalf("%v: rank %d holds %d and %v, at most %v over time; want %d and %v", p, r,
					timeline.PeakActivations[r], timeline.PeakMemory[r], most, count, memory)
			}
		}
		bubble := 0.0
		if step > 0 {
			bubble = 1 - busy/step/float64(len(p.Ranks))
		}
		if timeline.Makespan != makespan || timeline.StepTime != step || math.Abs(timeline.Bubble-bubble) > 1e-12 {
			t.Errorf("%v: makespan %v, step %v, bubble %v; want %v, %v, %v", p, timeline.Makespan, timeline.StepTime,
				timeline.Bubble, makespan, step, bubble)
		}
	}
}

// TestSimulateErrors checks which costs are refused, and the reasons.
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
