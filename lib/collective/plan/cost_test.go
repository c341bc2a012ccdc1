package plan_test

import (
	"cmp"
	"math"
	"math/bits"
	"strings"
	"testing"
	"time"

	"gonum.org/v1/gonum/floats/scalar"

	"github.com/shardbook/shardbook/lib/collective/plan"
)

var nvlink = plan.Link{Latency: 3 * time.Microsecond, Bandwidth: 400e9}
var ethernet = plan.Link{Latency: 20 * time.Microsecond, Bandwidth: 25e9}

// seconds is what a number of messages and bytes take one after the other.
func seconds(link plan.Link, messages, bytes float64) float64 {
	return messages*link.Latency.Seconds() + bytes/link.Bandwidth
}

func cost(t *testing.T, p *plan.Plan, topology plan.Topology, elements, size int) *plan.Timeline {
	t.Helper()
	line, err := p.Cost(topology, elements, size)
	if err != nil {
		t.Fatal(err)
	}
	return line
}

// near allows the rounding to whole nanoseconds.
func near(got time.Duration, want float64) bool {
	return math.Abs(got.Seconds()-want) <= 0.6e-9+1e-12*want
}

// TestClosedForms compares plans with the closed forms of Thakur, Rabenseifner & Gropp 2005 and Chan et al. 2007, and
// of the comment of Count: messages and bytes on the longest way, which cost that on a uniform network, and the rounds
// and most bytes that a rank sends.
func TestClosedForms(t *testing.T) {
	for N := 2; N <= 16; N++ {
		p, L, half := float64(N), float64(bits.Len(uint(N-1))), float64(N/2)
		elements := 720720 // 4 bytes each; a multiple of every N
		n := float64(4 * elements)
		for _, test := range []struct {
			op              plan.Op
			algorithm       plan.Algorithm
			messages, bytes float64
			rounds, sent    float64 // 0 where they are as many as messages and bytes
			powersOnly      bool
		}{
			{plan.Broadcast, plan.Naive, p - 1, (p - 1) * n, 0, 0, false},
			{plan.Broadcast, plan.Tree, L, L * n, 0, 0, false},
			{plan.Broadcast, plan.Ring, 2*p - 2, (2*p - 2) * n / p, 0, n, false},
			{plan.Broadcast, plan.HalvingDoubling, 2 * L, 2 * (p - 1) / p * n, 0, 0, true},
			{plan.Reduce, plan.Naive, p - 1, (p - 1) * n, 0, n, false},
			{plan.Reduce, plan.Tree, L, L * n, 0, n, false},
			{plan.Reduce, plan.HalvingDoubling, 2 * L, 2 * (p - 1) / p * n, 0, (p-1)/p*n + n/2, true},
			{plan.AllReduce, plan.Naive, 2 * (p - 1), 2 * (p - 1) * n, 0, (p - 1) * n, false},
			{plan.AllReduce, plan.Ring, 2 * (p - 1), 2 * (p - 1) / p * n, 0, 0, false},
			{plan.AllReduce, plan.OneShot, p - 1, (p - 1) * n, 1, 0, false},
			{plan.AllReduce, plan.Tree, 2 * L, 2 * L * n, 0, L * n, false},
			{plan.AllReduce, plan.RecursiveDoubling, L, L * n, 0, 0, true},
			{plan.AllReduce, plan.HalvingDoubling, 2 * L, 2 * (p - 1) / p * n, 0, 0, false},
			{plan.AllReduce, plan.BidirectionalRing, 2 * (p - 1), 2 * (p - 1) / p * n, 2 * half, 0, false},
			{plan.Gather, plan.Naive, p - 1, (p - 1) / p * n, 0, n / p, false},
			{plan.Gather, plan.Tree, L, (p - 1) / p * n, 0, n / 2, true},
			{plan.Scatter, plan.Naive, p - 1, (p - 1) / p * n, 0, 0, false},
			{plan.Scatter, plan.Tree, L, (p - 1) / p * n, 0, 0, true},
			{plan.AllGather, plan.Ring, p - 1, (p - 1) / p * n, 0, 0, false},
			{plan.AllGather, plan.OneShot, p - 1, (p - 1) / p * n, 1, 0, false},
			{plan.AllGather, plan.RecursiveDoubling, L, (p - 1) / p * n, 0, 0, false},
			{plan.ReduceScatter, plan.Ring, p - 1, (p - 1) / p * n, 0, 0, false},
			{plan.ReduceScatter, plan.OneShot, p - 1, (p - 1) / p * n, 1, 0, false},
			{plan.ReduceScatter, plan.HalvingDoubling, L, (p - 1) / p * n, 0, 0, false},
			{plan.AllToAll, plan.Naive, p - 1, (p - 1) / p * n, 0, 0, false},
			{plan.AllToAll, plan.OneShot, p - 1, (p - 1) / p * n, 1, 0, false},
			{plan.AllToAll, plan.Ring, p - 1, (p - 1) / 2 * n, 0, 0, false},
			{plan.AllToAll, plan.RecursiveDoubling, L, L / 2 * n, 0, 0, true},
		} {
			if test.powersOnly && N&(N-1) != 0 {
				continue
			}
			of := make1(t, test.op, test.algorithm, N)
			line := cost(t, of, plan.Uniform(nvlink), elements, 4)
			if want := seconds(nvlink, test.messages, test.bytes); !near(line.Total, want) {
				t.Errorf("%v by %v of %d: %v, want %v s", test.op, test.algorithm, N, line.Total, want)
			}
			rounds, sent := cmp.Or(test.rounds, test.messages), cmp.Or(test.sent, test.bytes)
			checkTraffic(t, of, elements, rounds, sent)
		}
	}
}

// checkTraffic compares a plan's rounds and the most bytes that a rank sends, and makes sure that the links add up to
// the ranks and those to the total.
func checkTraffic(t *testing.T, p *plan.Plan, elements int, rounds, sent float64) {
	t.Helper()
	traffic, err := p.Count(elements, 4)
	if err != nil {
		t.Fatal(err)
	}
	most := 0
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
		most = max(most, sent.Bytes)
	}
	if total != traffic.Total {
		t.Errorf("links make %v, total is %v", total, traffic.Total)
	}
	if !scalar.EqualWithinRel(float64(most), sent, 1e-12) || float64(traffic.Rounds) != rounds {
		t.Errorf("%v by %v of %d: at most %d bytes in %d rounds, want %v in %v", p.Op, p.Algorithm, p.Ranks, most,
			traffic.Rounds, sent, rounds)
	}
}

// Only with a port for each neighbour does the second direction pay.
func TestCostPorts(t *testing.T) {
	const elements = 40320
	two := plan.Uniform(nvlink)
	two.Ports = 2
	for _, N := range []int{2, 3, 5, 6, 8, 9} {
		rounds := float64(2 * (N / 2))
		line := cost(t, make1(t, plan.AllReduce, plan.BidirectionalRing, N), two, elements, 4)
		if want := seconds(nvlink, rounds, rounds*4*elements/float64(N)); !near(line.Total, want) {
			t.Errorf("both ways, %d ranks: %v, want %v s", N, line.Total, want)
		}
		ring := make1(t, plan.AllReduce, plan.Ring, N)
		if one, two := cost(t, ring, plan.Uniform(nvlink), elements, 4), cost(t, ring, two, elements,
			4); one.Total != two.Total {
			t.Errorf("one way, %d ranks: %v with one port, %v with two", N, one.Total, two.Total)
		}
	}
}

func TestCostHierarchical(t *testing.T) {
	const elements = 1 << 20
	for _, test := range []struct{ groups, size int }{{2, 8}, {4, 4}, {8, 2}, {1, 8}, {8, 1}} {
		N := test.groups * test.size
		G, g, n := float64(test.groups), float64(test.size), float64(4*elements)
		network := plan.Groups(test.size, nvlink, ethernet)
		p := make1(t, plan.AllReduce, plan.Hierarchical, N, plan.GroupsOf(test.size))
		want := 2 * (seconds(ethernet, G-1, (G-1)*n/G/g) + seconds(nvlink, g-1, (g-1)*n/g))
		line := cost(t, p, network, elements, 4)
		if !near(line.Total, want) {
			t.Errorf("%d groups of %d: %v, want %v s", test.groups, test.size, line.Total, want)
		}
		checkTraffic(t, p, elements, 2*(G+g-2), 2*float64(N-1)*n/float64(N))
		if ring := cost(t, make1(t, plan.AllReduce, plan.Ring, N), network, elements, 4); test.groups > 1 &&
			test.size > 1 && ring.Total <= line.Total {
			t.Errorf("%d groups of %d: a ring takes %v, no longer than %v", test.groups, test.size, ring.Total,
				line.Total)
		}
	}
}

// A network that differs by pair: a slow rank holds up whoever waits for it, and nobody else.
func TestCostWaits(t *testing.T) {
	slow := plan.Topology{Link: func(from, _ int) plan.Link {
		if from == 2 {
			return plan.Link{Latency: time.Second, Bandwidth: math.Inf(1)}
		}
		return plan.Link{Latency: time.Millisecond, Bandwidth: math.Inf(1)}
	}}
	line := cost(t, make1(t, plan.Reduce, plan.Tree, 4), slow, 10, 4)
	// 1→0 and 3→2 first, then 2→0, which takes a second.
	late := time.Second + time.Millisecond
	for rank, want := range []time.Duration{late, time.Millisecond, late, time.Millisecond} {
		if line.Done[rank] != want {
			t.Errorf("rank %d is done after %v, want %v", rank, line.Done[rank], want)
		}
	}
}

// TestTimeline checks that no port is used twice at a time, and that nothing is received before it is sent.
func TestTimeline(t *testing.T) {
	every(t, func(t *testing.T, op plan.Op, algorithm plan.Algorithm) {
		p := make1(t, op, algorithm, 7)
		line := cost(t, p, plan.Groups(3, nvlink, ethernet), 1001, 4)
		traffic, err := p.Count(1001, 4)
		if err != nil {
			t.Fatal(err)
		}
		type port struct {
			rank   int
			action plan.Action
		}
		free := map[port]time.Duration{}
		bytes, messages := 0, 0
		for _, s := range line.Spans {
			if at := (port{s.Rank, s.Action}); s.Begin < free[at]-1 || s.End < s.Begin { // 1 ns of rounding
				t.Errorf("%+v begins before %v", s, free[at])
			} else {
				free[at] = s.End
			}
			if s.End > line.Done[s.Rank] || line.Done[s.Rank] > line.Total {
				t.Errorf("%+v ends after %v of %v", s, line.Done[s.Rank], line.Total)
			}
			switch s.Action {
			case plan.Send:
				bytes += s.Bytes
				messages++
			case plan.Receive:
				for _, sent := range line.Spans {
					if sent.Action == plan.Send && sent.Round == s.Round && sent.Rank == s.Peer &&
						sent.Peer == s.Rank && sent.End > s.End {
						t.Errorf("%+v is received before %+v", s, sent)
					}
				}
			}
		}
		if bytes != traffic.Total.Bytes || messages != traffic.Total.Messages {
			t.Errorf("%d messages of %d bytes, want %v", messages, bytes, traffic.Total)
		}
	})
}

func TestCostErrors(t *testing.T) {
	p := make1(t, plan.AllReduce, plan.Ring, 3)
	for want, topology := range map[string]plan.Topology{
		"without links":       {},
		"-1 ports":            {Link: plan.Uniform(nvlink).Link, Ports: -1},
		"0 bytes/s":           plan.Uniform(plan.Link{}),
		"latency -1ns":        plan.Uniform(plan.Link{Latency: -1, Bandwidth: 1}),
		"from rank 0 to 1":    plan.Groups(0, nvlink, nvlink),
		"3µs and NaN bytes/s": plan.Uniform(plan.Link{Latency: 3 * time.Microsecond, Bandwidth: math.NaN()}),
	} {
		if _, err := p.Cost(topology, 10, 4); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %q", err, want)
		}
	}
	for _, sizes := range [][2]int{{-10, 4}, {10, -4}} {
		if _, err := p.Cost(plan.Uniform(nvlink), sizes[0], sizes[1]); err == nil {
			t.Errorf("%d elements of %d bytes: no error", sizes[0], sizes[1])
		}
	}
}
