package recompute_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/recompute"
)

// randomSteps returns small steps, some without bytes or cost, and some that must be saved.
func randomSteps(random *rand.Rand, n int) []recompute.Step {
	steps := make([]recompute.Step, n)
	for i := range steps {
		steps[i] = recompute.Step{Name: fmt.Sprint(i), Bytes: random.Int64N(9), Cost: float64(random.IntN(6)),
			Always: random.IntN(8) == 0}
	}
	return steps
}

// plainPeak goes backward step by step with a list of what is in memory.
func plainPeak(steps []recompute.Step, keep []bool) int64 {
	there := make([]bool, len(steps))
	copy(there, keep)
	var peak int64
	look := func() {
		var sum int64
		for i, s := range steps {
			if there[i] {
				sum += s.Bytes
			}
		}
		peak = max(peak, sum)
	}
	look()
	for at := len(steps) - 1; at >= -1; at-- {
		if at == len(steps)-1 || keep[at+1] { // the steps before it, back to a saved one, are recomputed
			for i := at; i >= 0 && !keep[i]; i-- {
				there[i] = true
			}
			look()
		}
		if at+1 < len(steps) {
			there[at+1] = false
		}
	}
	return peak
}

// bruteForce tries all choices, and returns the least cost within the budget and the least peak of all.
func bruteForce(steps []recompute.Step, budget int64) (cost float64, least int64) {
	cost, least = math.Inf(1), math.MaxInt64
	keep := make([]bool, len(steps))
	for bits := range 1 << len(steps) {
		sum, allowed := 0.0, true
		for i, s := range steps {
			keep[i] = bits>>i&1 == 1
			if !keep[i] {
				sum += s.Cost
				allowed = allowed && !s.Always
			}
		}
		if !allowed {
			continue
		}
		peak := plainPeak(steps, keep)
		least = min(least, peak)
		if peak <= budget {
			cost = min(cost, sum)
		}
	}
	return cost, least
}

func costOf(steps []recompute.Step, keep []bool) (cost float64) {
	for i, s := range steps {
		if !keep[i] {
			cost += s.Cost
		}
	}
	return cost
}

func TestChooseAgainstBruteForce(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	possible := 0
	for range 600 {
		steps := randomSteps(random, random.IntN(11))
		budget := random.Int64N(40)
		want, least := bruteForce(steps, budget)
		keep, peak, cost, err := recompute.Choose(steps, budget)
		if math.IsInf(want, 1) {
			if says := fmt.Sprintf("at most %d bytes: the least possible is %d", budget, least); err == nil ||
				!strings.Contains(err.Error(), says) {
				t.Fatalf("%v: error %v, want %q", steps, err, says)
			}
			continue
		}
		possible++
		if err != nil || cost != want {
			t.Fatalf("%v within %d bytes: cost %g, error %v, want %g", steps, budget, cost, err, want)
		}
		if cost != costOf(steps, keep) || peak > budget || peak != plainPeak(steps, keep) ||
			peak != recompute.Peak(steps, keep) {
			t.Fatalf("%v within %d bytes: kept %v, which costs %g and needs %d bytes: said are %g and %d",
				steps, budget, keep, costOf(steps, keep), plainPeak(steps, keep), cost, peak)
		}
		for i, s := range steps {
			if s.Always && !keep[i] {
				t.Fatalf("%v within %d bytes: step %d is not kept", steps, budget, i)
			}
		}
	}
	if possible < 200 {
		t.Errorf("only %d budgets were possible", possible)
	}
}

// exactCost is the least cost within a budget, by all possible sums of saved bytes.
func exactCost(steps []recompute.Step, budget int64) float64 {
	type sums = map[int64]float64 // the least cost by bytes kept
	upTo := []sums{{0: 0}}
	for j := 1; j <= len(steps)+1; j++ {
		own := recompute.Step{}
		if j <= len(steps) {
			own = steps[j-1]
		}
		next, run, again := sums{}, int64(0), 0.0
		for i := j - 1; i >= 0; i-- {
			for kept, cost := range upTo[i] {
				kept += own.Bytes
				if old, ok := next[kept]; kept+run <= budget && (!ok || cost+again < old) {
					next[kept] = cost + again
				}
			}
			if i > 0 {
				run, again = run+steps[i-1].Bytes, again+steps[i-1].Cost
			}
		}
		upTo = append(upTo, next)
	}
	least := math.Inf(1)
	for _, cost := range upTo[len(steps)+1] {
		least = min(least, cost)
	}
	return least
}

// Blocks of a Transformer, whose bytes are multiples of one number, and steps of any odd sizes.
func TestChooseLonger(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	var blocks, odd []recompute.Step
	for i := range 36 {
		bytes := []int64{1, 3, 8, 1, 1, 1, 4, 4, 1}[i%9] * 12_345_678
		blocks = append(blocks, recompute.Step{Bytes: bytes, Cost: []float64{1, 24, 16, 16, 9, 1, 32, 4, 33}[i%9]})
		odd = append(odd, recompute.Step{Bytes: 1 + random.Int64N(1e9), Cost: 1 + random.Float64()})
	}
	for _, share := range []float64{0.35, 0.5, 0.9} {
		for name, steps := range map[string][]recompute.Step{"blocks": blocks, "odd steps": odd[:17]} {
			budget := int64(share * float64(recompute.Peak(steps, slices.Repeat([]bool{true}, len(steps)))))
			want := exactCost(steps, budget)
			keep, peak, cost, err := recompute.Choose(steps, budget)
			if err != nil || peak > budget || recompute.Peak(steps, keep) != peak {
				t.Fatalf("%s within %d bytes: %d, error %v", name, budget, peak, err)
			}
			if bound := map[string]float64{"blocks": 1, "odd steps": 1.02}[name]; cost < want*(1-1e-12) ||
				cost > want*bound*(1+1e-12) {
				t.Errorf("%s within %d bytes: cost %g, the least is %g", name, budget, cost, want)
			}
		}
	}
}

// With a budget for only the smallest choice, Choose finds it, also if there are too many sums of bytes to follow.
func TestChooseWithLeastBudget(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	for range 20 {
		steps := make([]recompute.Step, 100)
		for i := range steps {
			steps[i] = recompute.Step{Bytes: random.Int64N(1e12), Cost: random.Float64()}
		}
		_, _, _, err := recompute.Choose(steps, 0)
		var least int64
		if _, scan := fmt.Sscanf(err.Error(), "recompute: no choice needs at most 0 bytes: the least possible is %d",
			&least); scan != nil {
			t.Fatal(err)
		}
		if _, peak, _, err := recompute.Choose(steps, least); err != nil || peak != least {
			t.Errorf("peak %d, error %v, want %d", peak, err, least)
		}
		if _, _, _, err := recompute.Choose(steps, least-1); err == nil {
			t.Errorf("a budget of %d is possible", least-1)
		}
	}
}

// For equal steps the peak can be P for up to P + (P−1) + … + 1 = P(P+1)/2 of them: in segments that get shorter by the
// step that is saved before each. Equal segments need up to 2√n − 1.
func TestChooseEqualSteps(t *testing.T) {
	steps := slices.Repeat([]recompute.Step{{Bytes: 3, Cost: 1}}, 36)
	if _, peak, _, err := recompute.Choose(steps, 3*8); err != nil || peak != 3*8 {
		t.Errorf("36 steps: peak %d, error %v, want 8 steps", peak, err)
	}
	if _, _, _, err := recompute.Choose(steps, 3*8-1); err == nil ||
		!strings.Contains(err.Error(), "least possible is 24") {
		t.Errorf("36 steps in less than 8: error %v", err)
	}
	if _, _, _, err := recompute.Choose(append(steps, steps[0]), 3*8); err == nil {
		t.Error("37 steps in 8")
	}
	// Equal segments of 6 need 11 and recompute 26. With the same memory, fewer are enough.
	if _, _, cost, err := recompute.Choose(steps, 3*11); err != nil || cost >= 26 {
		t.Errorf("36 steps in 11: %g are recomputed, error %v", cost, err)
	}
}

func TestChooseManySteps(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 10))
	steps := make([]recompute.Step, 1500)
	var all int64
	for i := range steps {
		steps[i] = recompute.Step{Bytes: 1 + random.Int64N(1e9), Cost: random.Float64(), Always: i%100 == 99}
		all += steps[i].Bytes
	}
	last := math.Inf(1)
	for _, part := range []int64{8, 4, 2, 1} {
		_, peak, cost, err := recompute.Choose(steps, all/part)
		if err != nil || peak > all/part || cost > last {
			t.Errorf("%d bytes: peak %d, cost %g after %g, error %v", all/part, peak, cost, last, err)
		}
		last = cost
	}
	if last != 0 {
		t.Errorf("with room for all, cost %g", last)
	}
	if _, _, _, err := recompute.Choose(steps, 5e8); err == nil {
		t.Error("less than a step is possible")
	}
}

func TestChooseErrors(t *testing.T) {
	for _, test := range []struct {
		step recompute.Step
		want string
	}{
		{recompute.Step{Name: "up", Bytes: -1}, `step 1, "up", has -1 bytes`},
		{recompute.Step{Name: "up", Cost: -1}, `step 1, "up", costs -1`},
		{recompute.Step{Name: "up", Cost: math.NaN()}, `step 1, "up", costs NaN`},
		{recompute.Step{Name: "up", Cost: math.Inf(1)}, `step 1, "up", costs +Inf`},
		{recompute.Step{Name: "up", Bytes: math.MaxInt64}, `overflows at step 1, "up"`},
		{recompute.Step{Name: "up", Cost: math.MaxFloat64}, `overflows at step 1, "up"`},
	} {
		_, _, _, err := recompute.Choose([]recompute.Step{{Bytes: 1, Cost: math.MaxFloat64}, test.step}, 1)
		must.Refuse(t, test.step, err, test.want)
	}
	for _, budget := range []int64{-1, math.MinInt64, math.MaxInt64} {
		keep, peak, cost, err := recompute.Choose([]recompute.Step{{Bytes: math.MaxInt64, Cost: 1}}, budget)
		if possible := budget > 0; possible != (err == nil) || possible &&
			(!keep[0] || peak != math.MaxInt64 || cost != 0) {
			t.Errorf("budget %d: %v, %d, %g, error %v", budget, keep, peak, cost, err)
		}
	}
}

func TestPlanOf(t *testing.T) {
	keep := slices.Repeat([]bool{true}, 18)
	keep[recompute.Act], keep[9+recompute.Scores] = false, false
	if plan, err := recompute.PlanOf(keep); err != nil || plan.Policy() != "plan:act;scores" {
		t.Errorf("plan %v, error %v", plan, err)
	}
	if _, err := recompute.PlanOf(keep[1:]); err == nil || !strings.Contains(err.Error(),
		"17 steps: give 9 for each block") {
		t.Errorf("of 17 steps: error %v", err)
	}
}

// The cheapest way to stay within a budget: large outputs that are cheap to recompute are dropped first.
func ExampleChoose() {
	steps := []recompute.Step{
		{Name: "qkv", Bytes: 3, Cost: 24},
		{Name: "scores", Bytes: 8, Cost: 16},
		{Name: "mid", Bytes: 1, Cost: 8},
		{Name: "up", Bytes: 4, Cost: 32},
		{Name: "act", Bytes: 4, Cost: 4},
		{Name: "down", Bytes: 1, Cost: 32, Always: true},
	}
	for _, budget := range []int64{21, 13, 12, 11} {
		keep, peak, cost, err := recompute.Choose(steps, budget)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Print("peak ", peak, " at a cost of ", cost, ", again:")
		for i, s := range steps {
			if !keep[i] {
				fmt.Print(" ", s.Name)
			}
		}
		fmt.Println()
	}
	// Output:
	// peak 21 at a cost of 0, again:
	// peak 13 at a cost of 16, again: scores
	// peak 12 at a cost of 40, again: qkv scores
	// recompute: no choice needs at most 11 bytes: the least possible is 12, raise the budget
}
