package pipeline_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/pipeline"
)

// Two stages for blocks of which the last costs most; then with memory for three blocks a stage at most.
func ExampleBalance() {
	costs := []float64{1, 1, 1, 1, 4}
	cut, err := pipeline.Balance(costs, nil, 0, 2)
	if err != nil {
		panic(err)
	}
	fmt.Println(cut)
	cut, err = pipeline.Balance(costs, []float64{1, 1, 1, 1, 1}, 3, 2)
	if err != nil {
		panic(err)
	}
	fmt.Println(cut)
	_, err = pipeline.Balance(costs, []float64{1, 1, 1, 1, 1}, 2, 2)
	fmt.Println(err)
	// Output:
	// [4 1]
	// [3 2]
	// pipeline: no cut into 2 stages needs at most 2 on each: allow 3, or use more stages
}

// cuts lists all ways to cut n blocks into stages.
func cuts(n, stages int) (all [][]int) {
	if stages == 1 {
		return [][]int{{n}}
	}
	for first := 1; first <= n-stages+1; first++ {
		for _, rest := range cuts(n-first, stages-1) {
			all = append(all, append([]int{first}, rest...))
		}
	}
	return all
}

// bestCut tries all cuts. It returns the one with the least cost of the most costly stage, of those that fit, with the
// shortest first stage, and so on; and the least memory that any cut needs.
func bestCut(costs, memory []float64, limit float64, stages int) (best []int, room float64) {
	least := math.Inf(1)
	room = math.Inf(1)
	for _, cut := range cuts(len(costs), stages) { // shorter first stages first
		need := worstOf(memory, cut)
		if room = min(room, need); need > limit {
			continue
		}
		if worst := worstOf(costs, cut); worst < least {
			best, least = cut, worst
		}
	}
	if best == nil || stages == 1 {
		return best, room
	}
	first := best[0]
	rest, _ := bestCut(costs[first:], memory[first:], limit, stages-1)
	return append([]int{first}, rest...), room
}

// worstOf is the largest sum of a stage.
func worstOf(values []float64, cut []int) (worst float64) {
	for _, n := range cut {
		sum := 0.0
		for _, v := range values[:n] {
			sum += v
		}
		worst, values = max(worst, sum), values[n:]
	}
	return worst
}

// TestBalance compares cuts with the best of all.
func TestBalance(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	fitted, refused := 0, 0
	for range 2000 {
		n := 1 + random.IntN(8)
		stages := 1 + random.IntN(n)
		costs, memory := make([]float64, n), make([]float64, n)
		for i := range costs {
			costs[i], memory[i] = float64(random.IntN(6)), float64(random.IntN(6)) // of which sums are exact
		}
		limit := float64(random.IntN(20))
		if random.IntN(3) == 0 {
			memory, limit = nil, 0
		}
		needs := memory
		if needs == nil {
			needs = make([]float64, n)
		}
		want, room := bestCut(costs, needs, limit, stages)
		got, err := pipeline.Balance(costs, memory, limit, stages)
		name := fmt.Sprintf("costs %v, memory %v up to %g, %d stages", costs, memory, limit, stages)
		if want == nil {
			refused++
			must.Refuse(t, name, err, fmt.Sprintf("allow %g", room))
			continue
		}
		fitted++
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v; want %v", name, got, err, want)
		}
	}
	if fitted < 500 || refused < 100 {
		t.Errorf("%d fit, %d do not", fitted, refused)
	}
}

func TestBalanceRefused(t *testing.T) {
	nan := math.NaN()
	for _, c := range []struct {
		costs, memory []float64
		stages        int
		want          string
	}{
		{[]float64{1, 2}, nil, 3, "2 blocks cannot be 3 stages"},
		{[]float64{1, 2}, nil, 0, "2 blocks cannot be 0 stages"},
		{nil, nil, 1, "0 blocks cannot be 1 stages"},
		{[]float64{1, -2}, nil, 2, "block 1 costs -2"},
		{[]float64{nan, 2}, nil, 2, "block 0 costs NaN"},
		{[]float64{1, math.Inf(1)}, nil, 2, "block 1 costs +Inf"},
		{[]float64{1, 2}, []float64{1, nan}, 2, "block 1 costs 2 and needs memory NaN"},
		{[]float64{1, 2}, []float64{1}, 2, "the memory of 1 blocks and the costs of 2"},
	} {
		cut, err := pipeline.Balance(c.costs, c.memory, 10, c.stages)
		must.Refuse(t, fmt.Sprint(c, cut), err, c.want)
	}
}

// TestEven: all blocks, none with more than one more than another, the first ones with more.
func TestEven(t *testing.T) {
	for stages := 1; stages <= 6; stages++ {
		for n := stages; n <= 20; n++ {
			cut, err := pipeline.Even(n, stages)
			sum := 0
			for _, size := range cut {
				sum += size
			}
			falling := slices.IsSortedFunc(cut, func(a, b int) int { return b - a })
			if err != nil || len(cut) != stages || sum != n || !falling || cut[0]-cut[stages-1] > 1 {
				t.Errorf("%d blocks in %d stages: %v, %v", n, stages, cut, err)
			}
		}
	}
}
