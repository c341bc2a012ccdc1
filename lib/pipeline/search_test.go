package pipeline_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/step"
)

// bestNamed is the shortest step of a named kind that a search with these numbers is compared with, and the kind's
// name.
func bestNamed(t *testing.T, d, m, v int, c step.Costs, memory float64) (best float64, name pipeline.Kind) {
	t.Helper()
	best = math.Inf(1)
	for _, k := range []pipeline.Kind{pipeline.KindNaive, pipeline.KindGPipe, pipeline.Kind1F1B,
		pipeline.KindInterleaved, pipeline.KindBreadthFirst, pipeline.KindLooped, pipeline.KindZBH1, pipeline.KindZBH2,
		pipeline.KindZBV} {
		chunks := v
		if !k.Chunked() {
			chunks = 0
		}
		s, err := pipeline.NewSchedule(k, d, m, chunks)
		if err != nil || len(s.Blocks) != d*v {
			continue
		}
		if n := simulated(t, s, c); n.StepTime < best && (memory == 0 || slices.Max(n.PeakMemory) <= memory) {
			best, name = n.StepTime, k
		}
	}
	return best, name
}

// TestSearchRandom checks what Search promises, at random costs: the schedule passes Check, keeps to the memory limit,
// and is not slower than any named schedule that does. Costs are integers, so times are exact.
func TestSearchRandom(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 10))
	faster, unfit := 0, 0
	for range 30 {
		d, m, v := 1+random.IntN(5), 1+random.IntN(9), 1+random.IntN(3)
		c := randomCosts(random, d*v)
		memory := float64(random.IntN(9 * v * (1 + random.IntN(d))))
		s, err := pipeline.Search(d, m, v, c, memory)
		best, name := bestNamed(t, d, m, v, c, memory)
		if err != nil {
			if unfit++; !strings.Contains(err.Error(), "one micro-batch at a time takes") || !math.IsInf(best, 1) {
				t.Errorf("%d ranks, %d micro-batches, %d chunks, memory %v: %v, but %s takes %v", d, m, v, memory, err,
					name, best)
			}
			continue
		}
		got := simulated(t, s, c) // checks it as well
		if len(s.Blocks) != d*v || s.Micro != m || s.Weights != step.Flush {
			t.Errorf("asked for %d stages and %d micro-batches: %v", d*v, m, s)
		}
		if most := slices.Max(got.PeakMemory); memory > 0 && most > memory {
			t.Errorf("%d ranks, %d micro-batches, %d chunks: memory %v, allowed %v", d, m, v, most, memory)
		}
		if got.StepTime > best {
			t.Errorf("%d ranks, %d micro-batches, %d chunks, memory %v: a step of %v, %s takes %v", d, m, v, memory,
				got.StepTime, name, best)
		}
		if got.StepTime < best {
			faster++
		}
		if v > 1 {
			continue // one stage a rank is enough to see what follows
		}
		if again, err := pipeline.Search(d, m, v, c, memory); err != nil || again.String() != s.String() {
			t.Errorf("the same question has another answer: %v, error %v", again, err)
		}
	}
	if faster < 8 || unfit < 2 {
		t.Errorf("%d answers are faster than all named kinds and %d questions have none: too few to test anything",
			faster, unfit)
	}
}

// TestSearchFaster lists cases in which no named schedule that fits is as fast as the result: 4 ranks, 8 micro-batches.
func TestSearchFaster(t *testing.T) {
	for _, test := range []struct {
		name   string
		chunks int
		costs  step.Costs
		memory float64
		most   float64 // that a step may take
	}{
		// 1F1B's memory is 4; below it only the naive schedule fits, of 96.
		{"little memory", 1, step.Equal(), 3, 36},
		// ZB-H1 takes 27 and ZB-H2, which takes 24, needs memory 7.
		{"memory between ZB-H1 and ZB-H2", 1, step.Equal(), 5, 26},
		{"an expensive head", 1, step.Costs{Forward: []float64{2, 2, 2, 3}, InputGrad: []float64{2, 2, 2, 3},
			WeightGrad: []float64{2, 2, 2, 3}}, 5, math.Inf(1)},
		{"slow links", 1, step.Costs{Link: func(int, int) float64 { return 1 }}, 5, math.Inf(1)},
		{"two chunks", 2, step.Costs{Forward: []float64{1, 3, 1, 1, 2, 1, 1, 1}}, 6, math.Inf(1)},
	} {
		s := must.Get(pipeline.Search(4, 8, test.chunks, test.costs, test.memory))(t)
		got := simulated(t, s, test.costs).StepTime
		if best, name := bestNamed(t, 4, 8, test.chunks, test.costs, test.memory); got >= best || got > test.most ||
			s.Name != string(pipeline.KindSearch) {
			t.Errorf("%s: %s takes %v, at most %v was expected, %s takes %v", test.name, s.Name, got, test.most, name,
				best)
		}
	}
}

// TestSearchOptimal finds, at equal costs, the zero-bubble schedules where memory allows them (Qi et al. 2023).
func TestSearchOptimal(t *testing.T) {
	for _, test := range []struct {
		chunks int
		memory float64
	}{{1, 7}, {2, 8}} { // 2d-1 micro-batches; d, of two halves each
		s := must.Get(pipeline.Search(4, 8, test.chunks, step.Equal(), test.memory))(t)
		if got := simulated(t, s, step.Equal()); got.Bubble != 0 {
			t.Errorf("%d chunks, memory %v: bubble %v of %s", test.chunks, test.memory, got.Bubble, s.Name)
		}
	}
}

func TestSearchErrors(t *testing.T) {
	for _, test := range []struct {
		d, m, v int
		c       step.Costs
		memory  float64
		want    string
	}{
		{0, 1, 1, step.Equal(), 0, "0 ranks"},
		{1, 0, 1, step.Equal(), 0, "0 micro-batches"},
		{1, 1, 0, step.Equal(), 0, "0 chunks"},
		{1 << 20, 1 << 20, 1 << 20, step.Equal(), 0, "passes"},
		{2, 2, 1, step.Equal(), -1, "memory is -1"},
		{2, 2, 1, step.Equal(), math.NaN(), "memory is NaN"},
		{2, 2, 1, step.Costs{Forward: []float64{1, 2, 3}}, 0, "3 values for 2"},
		{2, 2, 1, step.Costs{Link: func(int, int) float64 { return math.NaN() }}, 0, "Link"},
		{3, 5, 1, step.Costs{Activation: []float64{2, 5, 1}}, 4, "takes 5"},
		// In a V the ranks have 1+1 and 4+4, in a loop 1+4 and 4+1.
		{2, 5, 2, step.Costs{Activation: []float64{1, 4, 4, 1}}, 4.5, "takes 5"},
		// In a loop 1+1 and 4+4, in a V 1+4 and 4+1.
		{2, 5, 2, step.Costs{Activation: []float64{1, 4, 1, 4}}, 4.5, "takes 5"},
	} {
		if s, err := pipeline.Search(test.d, test.m, test.v, test.c, test.memory); err == nil ||
			!strings.Contains(err.Error(), test.want) {
			t.Errorf("got %v, error %v, want %q", s, err, test.want)
		}
	}
	if _, err := pipeline.Search(2, 5, 2, step.Costs{Activation: []float64{1, 4, 1, 4}}, 5); err != nil {
		t.Errorf("memory for a V alone: %v", err)
	}
}

func simulated(t *testing.T, p *step.Plan, c step.Costs) step.Timeline {
	t.Helper()
	timeline, err := p.Simulate(c)
	if err != nil {
		t.Fatalf("%s: %v", p.Name, err)
	}
	return timeline
}

// randomCosts are integers for each stage, some of them 0, and quarters as fractions after InputGrad, so that all sums
// are exact.
func randomCosts(random *rand.Rand, stages int) step.Costs {
	list := func(most int, unit float64) (values []float64) {
		for range stages {
			values = append(values, unit*float64(random.IntN(most+1)))
		}
		return values
	}
	c := step.Costs{Forward: list(5, 1), InputGrad: list(5, 1), WeightGrad: list(5, 1), Update: list(3, 1),
		Activation: list(6, 1), Kept: list(4, 0.25)}
	if random.IntN(2) == 0 {
		c.Backward = list(9, 1)
	}
	if salt := random.IntN(4); salt > 0 {
		c.Link = func(from, to int) float64 { return float64((salt*from + 3*to) % 5) }
	}
	return c
}
