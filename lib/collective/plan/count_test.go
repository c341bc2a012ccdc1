package plan_test

import (
	"math"
	"math/bits"
	"reflect"
	"testing"

	"gonum.org/v1/gonum/floats/scalar"

	"github.com/shardbook/shardbook/lib/collective/plan"
)

// TestFormula compares the counted traffic of every plan with the closed forms,
// rank by rank.
func TestFormula(t *testing.T) {
	every(t, func(t *testing.T, op plan.Op, algorithm plan.Algorithm) {
		for _, ranks := range []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 24, 33} {
			for _, elements := range []int{0, 1, 7, 16, 17, 1000, 1001} {
				want, err := plan.Formula(op, algorithm, ranks, elements, 4)
				if err != nil {
					if algorithm == plan.Hierarchical && ranks > 2 {
						continue // a smaller last group: there is no formula
					}
					t.Fatal(err)
				}
				got, err := make1(t, op, algorithm, ranks).Count(elements, 4)
				if err != nil {
					t.Fatal(err)
				}
				checkTotals(t, got)
				got.Links = nil
				if !reflect.DeepEqual(got, want) {
					t.Fatalf("%d ranks, %d elements: the plan has\n%+v, the formula\n%+v", ranks, elements, got, want)
				}
			}
		}
	})
}

// checkTotals makes sure that the links add up to the ranks and those to the total.
func checkTotals(t *testing.T, traffic plan.Traffic) {
	t.Helper()
	var total plan.Load
	for from, row := range traffic.Links {
		var sent, received plan.Load
		for to := range row {
			sent.Messages += row[to].Messages
			sent.Bytes += row[to].Bytes
			received.Messages += traffic.Links[to][from].Messages
			received.Bytes += traffic.Links[to][from].Bytes
		}
		if sent != traffic.Sent[from] || received != traffic.Received[from] || row[from] != (plan.Load{}) {
			t.Errorf("rank %d: links make %v and %v, loads are %v and %v", from, sent, received, traffic.Sent[from], traffic.Received[from])
		}
		total.Messages += sent.Messages
		total.Bytes += sent.Bytes
	}
	if total != traffic.Total {
		t.Errorf("links make %v, total is %v", total, traffic.Total)
	}
}

// Where N divides n, the textbook values; the table in Formula's comment.
func TestFormulaTable(t *testing.T) {
	for N := 2; N <= 16; N++ {
		L := bits.Len(uint(N - 1))
		n := 720720                                                                        // a multiple of every N
		group := map[int]int{4: 2, 6: 3, 8: 4, 9: 3, 10: 5, 12: 4, 14: 7, 15: 5, 16: 4}[N] // the default, where it divides N
		for _, test := range []struct {
			op                plan.Op
			algorithm         plan.Algorithm
			mostSent, inSteps int
		}{
			{plan.Broadcast, plan.Naive, (N - 1) * n, N - 1},
			{plan.Broadcast, plan.Ring, n, 2 * (N - 1)},
			{plan.Broadcast, plan.Tree, L * n, L},
			{plan.AllReduce, plan.Naive, (N - 1) * n, 2 * (N - 1)},
			{plan.AllReduce, plan.Ring, 2 * (N - 1) * n / N, 2 * (N - 1)},
			{plan.AllReduce, plan.OneShot, (N - 1) * n, 1},
			{plan.AllReduce, plan.Tree, L * n, 2 * L},
			{plan.AllReduce, plan.HalvingDoubling, 2 * (N - 1) * n / N, 2 * L},
			{plan.AllReduce, plan.BidirectionalRing, 2 * (N - 1) * n / N, 2 * (N / 2)},
			{plan.AllReduce, plan.Hierarchical, 2 * (N - 1) * n / N, 2 * (N/max(group, 1) + group - 2)},
			{plan.AllGather, plan.Ring, (N - 1) * n / N, N - 1},
			{plan.AllGather, plan.RecursiveDoubling, (N - 1) * n / N, L},
			{plan.ReduceScatter, plan.HalvingDoubling, (N - 1) * n / N, L},
			{plan.AllToAll, plan.Naive, (N - 1) * n / N, N - 1},
			{plan.AllToAll, plan.Ring, (N - 1) * n / 2, N - 1},
			{plan.AllReduce, plan.RecursiveDoubling, L * n, L},
			{plan.AllToAll, plan.RecursiveDoubling, L * n / 2, L},
		} {
			if test.algorithm == plan.Hierarchical && group == 0 ||
				N&(N-1) != 0 && test.algorithm == plan.RecursiveDoubling && test.op != plan.AllGather {
				continue
			}
			traffic, err := plan.Formula(test.op, test.algorithm, N, n, 1)
			if err != nil {
				t.Fatal(err)
			}
			most := 0
			for _, load := range traffic.Sent {
				most = max(most, load.Bytes)
			}
			if most != test.mostSent || traffic.Rounds != test.inSteps {
				t.Errorf("%v by %v of %d: at most %d bytes in %d rounds, want %d in %d",
					test.op, test.algorithm, N, most, traffic.Rounds, test.mostSent, test.inSteps)
			}
		}
	}
}

func TestVolumes(t *testing.T) {
	const elements, size = 5040, 2 // a multiple of every N
	for _, v := range plan.Volumes() {
		for ranks := 1; ranks <= 10; ranks++ {
			traffic, err := make1(t, v.Op, v.Algorithm, ranks).Count(elements, size)
			if err != nil {
				t.Fatal(err)
			}
			if want := v.Factor(ranks) * elements * size; !scalar.EqualWithinRel(float64(traffic.Total.Bytes), want, 1e-12) {
				t.Errorf("%s of %d ranks moves %d bytes, %s is %v", v.Name, ranks, traffic.Total.Bytes, v.Formula, want)
			}
		}
	}
}

// How rounds, messages and bytes grow with the number of ranks. A lecture's table has
// for all-reduce: naive time O(N), bandwidth O(N); ring O(N), O(1); "parallel" (one-shot) O(1), O(N²);
// recursive halving O(log N).
func TestComplexity(t *testing.T) {
	const elements = 1 << 16
	for ranks := 2; ranks <= 32; ranks++ {
		count := func(algorithm plan.Algorithm) plan.Traffic {
			traffic, err := make1(t, plan.AllReduce, algorithm, ranks).Count(elements, 1)
			if err != nil {
				t.Fatal(err)
			}
			return traffic
		}
		log := bits.Len(uint(ranks - 1))

		// Naive: O(N) rounds, and O(N) bytes at the root.
		if c := count(plan.Naive); c.Rounds != 2*(ranks-1) || c.Sent[0].Bytes != (ranks-1)*elements {
			t.Errorf("%d ranks, naive: %d rounds, %v at the root", ranks, c.Rounds, c.Sent[0])
		}
		// Ring: O(N) rounds, and O(1) bytes a link: never more than twice the data.
		c := count(plan.Ring)
		if c.Rounds != 2*(ranks-1) {
			t.Errorf("%d ranks, ring: %d rounds", ranks, c.Rounds)
		}
		for from, row := range c.Links {
			for to, link := range row {
				if neighbour := to == (from+1)%ranks; link.Bytes >= 2*elements || (link.Bytes > 0) != neighbour {
					t.Errorf("%d ranks, ring: %v from %d to %d", ranks, link, from, to)
				}
			}
		}
		// One-shot: O(1) rounds, O(N²) messages and bytes in all, O(N) at each rank.
		if c := count(plan.OneShot); c.Rounds != 1 || c.Total != (plan.Load{Messages: ranks * (ranks - 1), Bytes: ranks * (ranks - 1) * elements}) {
			t.Errorf("%d ranks, one-shot: %d rounds, %v", ranks, c.Rounds, c.Total)
		}
		// Recursive halving and doubling: O(log N) rounds, twice log2 N to be exact, and
		// as few bytes as the ring in all.
		if h := count(plan.HalvingDoubling); h.Rounds != 2*log || h.Total.Bytes != c.Total.Bytes {
			t.Errorf("%d ranks, halving-doubling: %d rounds, %v", ranks, h.Rounds, h.Total)
		}
	}
}

func TestBusFactor(t *testing.T) {
	for _, test := range []struct {
		op   plan.Op
		want float64
	}{{plan.AllReduce, 1.75}, {plan.ReduceScatter, 0.875}, {plan.AllGather, 0.875}, {plan.AllToAll, 0.875},
		{plan.Gather, 0.875}, {plan.Scatter, 0.875}, {plan.Broadcast, 1}, {plan.Reduce, 1}} {
		if got := plan.BusFactor(test.op, 8); got != test.want {
			t.Errorf("%v: %v, want %v", test.op, got, test.want)
		}
	}
	if got := plan.BusFactor(plan.AllReduce, 0); got != 0 || math.IsNaN(got) {
		t.Errorf("no ranks: %v", got)
	}
}

func TestCountErrors(t *testing.T) {
	p := make1(t, plan.AllReduce, plan.Ring, 3)
	if _, err := p.Count(-1, 4); err == nil {
		t.Error("-1 elements: no error")
	}
	if _, err := plan.Formula(plan.AllReduce, plan.Ring, 3, 1, -4); err == nil {
		t.Error("elements of -4 bytes: no error")
	}
	if _, err := plan.Formula(plan.AllReduce, plan.Ring, 0, 1, 4); err == nil {
		t.Error("no ranks: no error")
	}
	if _, err := plan.Formula(plan.Gather, plan.Ring, 3, 1, 4); err == nil {
		t.Error("gather by ring: no error")
	}
	p.Steps = p.Steps[1:]
	if _, err := p.Count(1, 4); err == nil {
		t.Error("a plan without rank 0: no error")
	}
}
