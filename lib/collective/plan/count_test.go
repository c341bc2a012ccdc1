package plan_test

import (
	"math/bits"
	"testing"
	"time"

	"gonum.org/v1/gonum/floats/scalar"

	"github.com/shardbook/shardbook/lib/collective/plan"
)

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
			t.Errorf("rank %d: links make %v and %v, loads are %v and %v", from, sent, received, traffic.Sent[from],
				traffic.Received[from])
		}
		total.Messages += sent.Messages
		total.Bytes += sent.Bytes
	}
	if total != traffic.Total {
		t.Errorf("links make %v, total is %v", total, traffic.Total)
	}
}

// TestCount compares counts with the textbook values, which are those in the comment of Count; N divides n.
func TestCount(t *testing.T) {
	for N := 2; N <= 16; N++ {
		L := bits.Len(uint(N - 1))
		n := 720720 // a multiple of every N
		// the default, where it divides N
		group := map[int]int{4: 2, 6: 3, 8: 4, 9: 3, 10: 5, 12: 4, 14: 7, 15: 5, 16: 4}[N]
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
			traffic, err := plan.Count(test.op, test.algorithm, N, n, 1)
			if err != nil {
				t.Fatal(err)
			}
			checkTotals(t, traffic)
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
			if want := v.Factor(ranks) * elements * size; !scalar.EqualWithinRel(float64(traffic.Total.Bytes), want,
				1e-12) {
				t.Errorf("%s of %d ranks moves %d bytes, %s is %v", v.Name, ranks, traffic.Total.Bytes, v.Formula, want)
			}
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
	if got := plan.BusFactor(plan.AllReduce, 0); got != 0 {
		t.Errorf("no ranks: %v", got)
	}
}

func TestCountErrors(t *testing.T) {
	if _, err := plan.Count(plan.AllReduce, plan.Ring, 3, 1, -4); err == nil {
		t.Error("elements of -4 bytes: no error")
	}
	if _, err := plan.Count(plan.Gather, plan.Ring, 3, 1, 4); err == nil {
		t.Error("gather by ring: no error")
	}
	p := make1(t, plan.AllReduce, plan.Ring, 3)
	if _, err := p.Count(-1, 4); err == nil {
		t.Error("-1 elements: no error")
	}
	p.Steps = p.Steps[1:]
	if _, err := p.Count(1, 4); err == nil {
		t.Error("a plan without rank 0: no error")
	}
}

func TestCut(t *testing.T) {
	for n := range 40 {
		for chunks := 1; chunks < 12; chunks++ {
			at := 0
			for i := range chunks {
				begin, end := plan.Cut(n, chunks, i)
				if size := end - begin; begin != at || size < n/chunks || size > (n+chunks-1)/chunks {
					t.Fatalf("Cut(%d, %d, %d) is %d to %d after %d", n, chunks, i, begin, end, at)
				}
				at = end
			}
			if at != n {
				t.Fatalf("%d elements in %d chunks end at %d", n, chunks, at)
			}
		}
	}
}

// TestFastest: the fastest takes no longer than any other, and is the first of those.
func TestFastest(t *testing.T) {
	network := plan.Uniform(plan.Link{Latency: 5 * time.Microsecond, Bandwidth: 50e9})
	for _, op := range plan.Ops() {
		for _, ranks := range []int{1, 2, 5, 8} {
			for _, elements := range []int{0, 10, 1 << 20} {
				best, line, err := plan.Fastest(op, ranks, network, elements, 4)
				if err != nil {
					t.Fatal(err)
				}
				before := true
				for _, algorithm := range plan.Algorithms(op) {
					other := cost(t, make1(t, op, algorithm, ranks), network, elements, 4)
					before = before && algorithm != best.Algorithm
					if other.Total < line.Total || before && other.Total == line.Total {
						t.Errorf("%v between %d ranks, %d elements: %v is said to be fastest (%v), %v takes %v",
							op, ranks, elements, best.Algorithm, line.Total, algorithm, other.Total)
					}
				}
			}
		}
	}
	for _, of := range []struct {
		op      plan.Op
		ranks   int
		network plan.Topology
	}{{plan.Op(99), 2, network}, {plan.AllReduce, 0, network}, {plan.AllReduce, 2, plan.Topology{}}} {
		if _, _, err := plan.Fastest(of.op, of.ranks, of.network, 1, 4); err == nil {
			t.Errorf("%+v: no error", of)
		}
	}
}
