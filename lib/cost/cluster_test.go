package cost

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"gonum.org/v1/gonum/floats/scalar"
)

// The time is that of the rounds of messages, counted one by one.
func TestLinkTime(t *testing.T) {
	random := rand.New(rand.NewPCG(15, 16))
	for range 200 {
		link := Link{Latency: Seconds(random.Float64()), Bandwidth: 1 + 1e3*random.Float64()}
		n, bytes := 1+random.IntN(20), 1e4*random.Float64()
		hop := float64(link.Latency) + bytes/float64(n)/link.Bandwidth
		// A rank has its own chunk, and receives one more in each round.
		gather := 0.0
		for has := 1; has < n; has++ {
			gather += hop
		}
		for op, want := range map[Op]float64{
			AllGather: gather, ReduceScatter: gather, AllToAll: gather, AllReduce: 2 * gather,
			PointToPoint: float64(link.Latency) + bytes/link.Bandwidth,
		} {
			got := must.Get(link.Time(op, bytes, n))(t)
			if !scalar.EqualWithinAbsOrRel(float64(got), want, 1e-12, 1e-12) {
				t.Fatalf("%s of %g bytes among %d over %+v: %v, want %v", op, bytes, n, link, float64(got), want)
			}
			// Without latency, nccl-tests' bus bandwidth is the link's.
			link := Link{Bandwidth: link.Bandwidth}
			took, factor := must.Get(link.Time(op, bytes, n))(t), must.Get(op.BusFactor(n))(t)
			if factor > 0 && !scalar.EqualWithinRel(bytes/float64(took)*factor, link.Bandwidth, 1e-12) {
				t.Fatalf("%s among %d: a bus bandwidth of %v, want %v", op, n, bytes/float64(took)*factor,
					link.Bandwidth)
			}
		}
	}
}

// nccl-tests, doc/PERFORMANCE.md: the factors between algorithm and bus bandwidth.
func TestBusFactor(t *testing.T) {
	for _, c := range []struct {
		op   Op
		n    int
		want float64
	}{
		{AllReduce, 8, 1.75}, {AllGather, 8, 0.875}, {ReduceScatter, 8, 0.875}, {AllToAll, 4, 0.75},
		{PointToPoint, 2, 1}, {AllReduce, 1, 0},
	} {
		if got := must.Get(c.op.BusFactor(c.n))(t); got != c.want {
			t.Errorf("%s among %d: %v, want %v", c.op, c.n, got, c.want)
		}
	}
}

// A ring crosses nodes if one of its devices is not on the node of the first.
func TestBetween(t *testing.T) {
	inside, between := Link{Bandwidth: 2}, Link{Bandwidth: 1}
	for node := 1; node <= 9; node++ {
		c := Cluster{DevicesPerNode: node, Intra: inside, Inter: between}
		for ranks := 1; ranks <= 9; ranks++ {
			for stride := 1; stride <= 9; stride++ {
				want := inside
				for rank := range ranks {
					if rank*stride/node != 0 {
						want = between
					}
				}
				if got := must.Get(c.Between(ranks, stride))(t); got != want {
					t.Fatalf("%d ranks of stride %d in nodes of %d: %+v", ranks, stride, node, got)
				}
			}
		}
		if got := must.Get(c.Between(math.MaxInt, math.MaxInt))(t); got != between {
			t.Errorf("the largest number of ranks: %+v", got)
		}
	}
}

func TestClusterErrors(t *testing.T) {
	const choose = `: choose one of ["all-reduce" "all-gather" "reduce-scatter" "all-to-all" "point-to-point"]`
	good := Link{Latency: 1, Bandwidth: 1}
	_, err := Cluster{}.Between(2, 1)
	check(t, err, "cost: ranks is 2, stride 1 and DevicesPerNode 0: give at least 1 for each")
	_, err = Cluster{DevicesPerNode: 1, Inter: Link{Latency: -1, Bandwidth: 1}}.Between(2, 1)
	check(t, err, "cost: Link.Latency is -1: give at least 0")
	_, err = Link{}.Time(AllReduce, 1, 2)
	check(t, err, "cost: Link.Bandwidth is 0: give a positive number")
	_, err = Link{Latency: Seconds(math.NaN()), Bandwidth: 1}.Time(AllReduce, 1, 2)
	check(t, err, "cost: Link.Latency is NaN: give at least 0")
	_, err = good.Time("broadcast", 1, 2)
	check(t, err, `cost: unknown operation "broadcast"`+choose)
	_, err = good.Time(AllReduce, 1, 0)
	check(t, err, "cost: all-reduce with 0 ranks: give at least 1")
	_, err = good.Time(AllReduce, -1, 2)
	check(t, err, "cost: bytes is -1: give at least 0")
	_, err = Op("").BusFactor(2)
	check(t, err, `cost: unknown operation ""`+choose)
}
