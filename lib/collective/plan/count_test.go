package plan_test

import (
	"testing"
	"time"

	"gonum.org/v1/gonum/floats/scalar"

	"github.com/shardbook/shardbook/lib/collective/plan"
)

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
	if _, err := plan.Count(plan.Gather, plan.Ring, 3, 1, 4); err == nil {
		t.Error("gather by ring: no error")
	}
	p := make1(t, plan.AllReduce, plan.Ring, 3)
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
