package pipeline_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/pipeline/schedule"
)

// synchronous are the kinds that compute what one device would, with one copy of each stage.
func synchronous() (kinds []schedule.Kind) {
	for _, kind := range schedule.Kinds() {
		if kind.Synchronous() && kind != schedule.KindDualPipe {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// TestSchedules trains with every synchronous schedule, on 1 to 6 ranks, with one stage each and with two: all give the same bits,
// which are one device's within a bound. Two blocks have a parameter in common, and one has one that nothing uses.
func TestSchedules(t *testing.T) {
	const steps, m = 3, 12
	e, batches := tiedEngine(t), toyBatches(m*microRows)
	var first *result
	for ranks := 1; ranks <= 6; ranks++ {
		for _, kind := range synchronous() {
			s, err := schedule.New(kind, ranks, m, 0)
			if err != nil {
				continue // not for so many ranks
			}
			got := training{engine: e, options: pipeline.Options{Schedule: s}, steps: steps, batches: batches}.run(t)
			if first == nil {
				first = &got
			}
			same(t, fmt.Sprintf("%s on %d ranks", kind, ranks), got, *first)
		}
	}
	one := alone(t, tiedRecipe(), steps, batches)
	near(t, "one device", *first, one)
	for _, ranks := range []int{2, 4, 6} {
		o := pipeline.Options{Schedule: newSchedule(t, schedule.KindDualPipe, ranks, m, 0)}
		near(t, fmt.Sprintf("dualpipe on %d ranks", ranks), training{engine: e, options: o, steps: steps, batches: batches}.run(t), one)
	}
}

// same checks that two results have the same bits.
func same(t *testing.T, name string, got, want result) {
	t.Helper()
	if p := got.differ(want); p != "" {
		t.Errorf("%s: %s has other bits, at most %g units apart", name, p, got.apart(t, want))
	}
	if !slices.Equal(got.losses, want.losses) {
		t.Errorf("%s: losses %v, want %v", name, got.losses, want.losses)
	}
}

// near checks that two results have the same parameters within the bound.
func near(t *testing.T, name string, got, want result) {
	t.Helper()
	off := got.apart(t, want)
	t.Logf("%s: %g units apart", name, off)
	if !(off <= bound) {
		t.Errorf("%s: %g units apart, want at most %d", name, off, bound)
	}
}

// plain trains in a plain pipeline: what others are held against.
func plain(t *testing.T, e *pipeline.Engine, m, replicas, steps int, batches batchOf) result {
	t.Helper()
	o := pipeline.Options{Schedule: newSchedule(t, schedule.KindGPipe, 2, m, 0), Replicas: replicas}
	return training{engine: e, options: o, steps: steps, batches: batches}.run(t)
}

// TestGradients compares the gradients themselves, bit for bit: those of all schedules, and those of DualPipe, where each half of the
// batch has its own copy of every stage, with those of two pipelines that have half of the batch each.
func TestGradients(t *testing.T) {
	const m = 8
	r := tiedRecipe()
	r.Rule = gradients{}
	e, batches := engineOf(t, "gradients", r), toyBatches(m*microRows)
	of := func(s schedule.Schedule) result {
		return training{engine: e, options: pipeline.Options{Schedule: s}, steps: 1, batches: batches}.run(t)
	}
	want := plain(t, e, m, 1, 1, batches)
	for _, kind := range synchronous() {
		same(t, string(kind), of(newSchedule(t, kind, 4, m, 0)), want)
	}
	near(t, "one device", want, alone(t, r, 1, batches))
	for _, ranks := range []int{2, 4} {
		dual := of(newSchedule(t, schedule.KindDualPipe, ranks, m, 0))
		two := plain(t, e, m/2, 2, 1, batches)
		near(t, "two pipelines and one", two, want)
		for _, r := range []result{dual, two} {
			delete(r.params, "scale") // of four gradients, which are added up in another order
		}
		same(t, fmt.Sprintf("dualpipe on %d ranks", ranks), dual, two)
	}
}

// TestWorlds trains with uneven cuts, in several pipelines, and computing again what others keep.
func TestWorlds(t *testing.T) {
	const steps, m = 3, 4
	e := tiedEngine(t)
	for replicas := 1; replicas <= 2; replicas++ {
		batches := toyBatches(replicas * m * microRows)
		want := plain(t, e, m, replicas, steps, batches)
		near(t, fmt.Sprintf("%d pipelines", replicas), want, alone(t, tiedRecipe(), steps, batches))
		for _, c := range []struct {
			kind      schedule.Kind
			ranks     int
			cut       []int
			recompute bool
		}{
			{schedule.KindGPipe, 3, nil, true},
			{schedule.KindZBH2, 3, []int{1, 10, 1}, true},
			{schedule.Kind1F1B, 4, []int{1, 2, 3, 6}, false},
			{schedule.KindZBH1, 2, []int{11, 1}, false},
			{schedule.KindZBV, 3, []int{2, 1, 4, 1, 1, 3}, true},
			{schedule.KindInterleaved, 2, []int{1, 4, 5, 2}, false},
		} {
			o := pipeline.Options{Schedule: newSchedule(t, c.kind, c.ranks, m, 0), Cut: c.cut, Replicas: replicas, Recompute: c.recompute}
			got := training{engine: e, options: o, steps: steps, batches: batches}.run(t)
			if name := fmt.Sprintf("%d pipelines, %+v", replicas, c); replicas > 1 && c.kind == schedule.KindZBV {
				near(t, name, got, want) // a rank has both ends, and adds the gradients of what they have in common up first
			} else {
				same(t, name, got, want)
			}
		}
	}
}

// shuffled moves actions about, in ways that the check lets pass.
func shuffled(random *rand.Rand, s schedule.Schedule) (_ schedule.Schedule, moved int) {
	for range 100 {
		next := s
		next.Ranks = slices.Clone(s.Ranks)
		r := random.IntN(len(s.Ranks))
		list := slices.Clone(s.Ranks[r])
		from, to := random.IntN(len(list)), random.IntN(len(list))
		a := list[from]
		list = slices.Insert(slices.Delete(list, from, from+1), to, a)
		if next.Ranks[r] = list; from != to && next.Check() == nil {
			s = next
			moved++
		}
	}
	return s, moved
}

// TestOrders trains with random orders, and with what a search finds: the same bits.
func TestOrders(t *testing.T) {
	const steps, m = 2, 4
	e, batches := tiedEngine(t), toyBatches(m*microRows)
	want := plain(t, e, m, 1, steps, batches)
	random := rand.New(rand.NewPCG(5, 6))
	check := func(s schedule.Schedule) {
		t.Helper()
		same(t, s.String(), training{engine: e, options: pipeline.Options{Schedule: s}, steps: steps, batches: batches}.run(t), want)
	}
	for range 3 {
		for _, kind := range []schedule.Kind{schedule.KindGPipe, schedule.KindZBH1, schedule.KindZBV} {
			s, moved := shuffled(random, newSchedule(t, kind, 3, m, 0))
			if moved < 5 {
				t.Errorf("%s: only %d moves", kind, moved)
			}
			check(s)
		}
	}
	for chunks := 1; chunks <= 2; chunks++ {
		costs := schedule.Costs{Forward: []float64{1}, InputGrad: []float64{2}, WeightGrad: []float64{1.5},
			Link: func(_, _ int) float64 { return 0.7 }}
		s, err := schedule.Search(3, m, chunks, costs, 5)
		if err != nil {
			t.Fatal(err)
		}
		check(s)
	}
}
