package plan

import (
	"testing"
	"time"
)

// The fastest is as fast as any, and the first of those.
func TestFastest(t *testing.T) {
	network := Uniform(Link{Latency: 5 * time.Microsecond, Bandwidth: 50e9})
	for _, op := range Ops() {
		for _, ranks := range []int{1, 2, 5, 8} {
			for _, elements := range []int{0, 10, 1 << 20} {
				best, line, err := Fastest(op, ranks, network, elements, 4)
				if err != nil {
					t.Fatal(err)
				}
				before := true
				for _, algorithm := range Algorithms(op) {
					p, err := New(op, algorithm, ranks)
					if err != nil {
						t.Fatal(err)
					}
					other, err := p.Cost(network, elements, 4)
					if err != nil {
						t.Fatal(err)
					}
					before = before && algorithm != best.Algorithm
					if other.Total < line.Total || before && other.Total == line.Total {
						t.Errorf("%v between %d ranks, %d elements: %v is said to be fastest (%v), %v takes %v",
							op, ranks, elements, best.Algorithm, line.Total, algorithm, other.Total)
					}
				}
			}
		}
	}
	if _, _, err := Fastest(Op(99), 2, network, 1, 4); err == nil {
		t.Error("an operation that does not exist has a fastest plan")
	}
	if _, _, err := Fastest(AllReduce, 0, network, 1, 4); err == nil {
		t.Error("no ranks have a fastest plan")
	}
	if _, _, err := Fastest(AllReduce, 2, Topology{}, 1, 4); err == nil {
		t.Error("a network without links has a fastest plan")
	}
}
