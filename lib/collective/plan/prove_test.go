package plan_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/lib/collective/plan"
)

// every calls f with each operation and algorithm there is.
func every(t *testing.T, f func(t *testing.T, op plan.Op, algorithm plan.Algorithm)) {
	t.Helper()
	for _, op := range plan.Ops() {
		for _, algorithm := range plan.Algorithms(op) {
			t.Run(fmt.Sprintf("%v/%v", op, algorithm), func(t *testing.T) { f(t, op, algorithm) })
		}
	}
}

func make1(t *testing.T, op plan.Op, algorithm plan.Algorithm, ranks int, options ...plan.Option) *plan.Plan {
	t.Helper()
	p, err := plan.New(op, algorithm, ranks, options...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestProve proves all plans, from and to all roots and in groups of all sizes, and that ranks get the same bits.
func TestProve(t *testing.T) {
	every(t, func(t *testing.T, op plan.Op, algorithm plan.Algorithm) {
		for ranks := 1; ranks <= 33; ranks++ {
			roots, sizes := 1, 1
			if ranks < 13 && slices.Contains([]plan.Op{plan.Broadcast, plan.Reduce, plan.Gather, plan.Scatter}, op) {
				roots = ranks
			}
			if ranks < 13 && algorithm == plan.Hierarchical {
				sizes = ranks + 2
			}
			for root := range roots {
				for size := range sizes {
					options := []plan.Option{plan.Root(root)}
					if size > 0 { // else the default
						options = append(options, plan.GroupsOf(size))
					}
					same, err := make1(t, op, algorithm, ranks, options...).SameBits() // which proves the plan first
					if err != nil || !same {
						t.Fatalf("%d ranks, root %d, groups of %d: same bits: %v; %v", ranks, root, size, same, err)
					}
				}
			}
		}
	})
}

// A plan whose ranks each add their own data first is right, but the ranks differ by rounding.
const ownFirst = `all-reduce by one-shot: 3 ranks, root 0, 1 chunks, 3 slots, 1 rounds
rank 0
  0: send 0 to 1; send 0 to 2; receive 1[0] from 1; receive 2[0] from 2; 0 += 1; 0 += 2
rank 1
  0: send 0 to 0; send 0 to 2; receive 1[0] from 0; receive 2[0] from 2; 0 += 1; 0 += 2
rank 2
  0: send 0 to 0; send 0 to 1; receive 1[0] from 0; receive 2[0] from 1; 0 += 1; 0 += 2
`

func TestSameBitsSeesTheOrder(t *testing.T) {
	p, err := plan.Parse(ownFirst)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Prove(); err != nil {
		t.Error(err)
	}
	// Rank 0 has (a+b)+c and rank 1 (b+a)+c, which are the same, but rank 2 (c+a)+b.
	if same, err := p.SameBits(); same || err != nil {
		t.Errorf("SameBits is %v, %v; the ranks add in different orders", same, err)
	}
	for rank, want := range []string{"(a0+b0)+c0", "(b0+a0)+c0", "(c0+a0)+b0"} {
		if got, err := p.Order(rank, 0); got != want || err != nil {
			t.Errorf("rank %d: %q, %v; want %q", rank, got, err, want)
		}
	}
}

// The ring of one of the texts that this library follows has each rank add what its neighbour sends and "then send this
// data again". If that is the sum, contributions count twice from the second round on.
func TestRingOfSumsIsWrong(t *testing.T) {
	var b strings.Builder
	b.WriteString("all-reduce by ring: 3 ranks, root 0, 1 chunks, 2 slots, 2 rounds\n")
	for rank := range 3 {
		fmt.Fprintf(&b, "rank %d\n", rank)
		for round := range 2 {
			fmt.Fprintf(&b, "  %d: send 0 to %d; receive 1[0] from %d; 0 += 1\n", round, (rank+1)%3, (rank+2)%3)
		}
	}
	p, err := plan.Parse(b.String())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Prove(); err == nil || !strings.Contains(err.Error(), "rank 2 is in both") {
		t.Errorf("got %v, want that a contribution counts twice", err)
	}
}

func TestProveErrors(t *testing.T) {
	sound := func() *plan.Plan { return make1(t, plan.AllReduce, plan.Ring, 3) }
	for _, test := range []struct {
		want   string
		change func(p *plan.Plan)
	}{
		{"unknown operation Op(9)", func(p *plan.Plan) { p.Op = 9 }},
		{"unknown algorithm Algorithm(9)", func(p *plan.Plan) { p.Algorithm = 9 }},
		{"0 ranks", func(p *plan.Plan) { p.Ranks = 0 }},
		{"slots in all", func(p *plan.Plan) { p.Slots = 1 << 40 }},
		{"steps of 2 ranks, want 3", func(p *plan.Plan) { p.Steps = p.Steps[:2] }},
		{"root 1 of 3 ranks for all-reduce", func(p *plan.Plan) { p.Root = 1 }},
		{"2 slots, all-reduce of 3 chunks needs 3", func(p *plan.Plan) { p.Slots = 2 }},
		{"4 chunks do not make 3 equal parts", func(p *plan.Plan) { p.Op, p.Chunks = plan.AllGather, 4 }},
		{"100 rounds for 30 steps", func(p *plan.Plan) { p.Rounds = 100 }},
		{"rank 0, round 9 (send 2 to 1): a step after round 0 of 4", func(p *plan.Plan) { p.Steps[0][0].Round = 9 }},
		{"peer 0: want another rank", func(p *plan.Plan) { p.Steps[0][0].Peer = 0 }},
		{"chunk 9 of 3", func(p *plan.Plan) { p.Steps[0][0].Chunk = 9 }},
		{"(Action(9) 1): unknown action", func(p *plan.Plan) { p.Steps[0][2].Action = 9 }},
		{"rank 2 sends chunk 2", func(p *plan.Plan) { p.Steps[2][0].Slot, p.Steps[2][0].Chunk = 2, 2 }},
		{"slot 3 holds c1, which has the size of chunk 1", func(p *plan.Plan) { // a message of round 1 never happens
			p.Steps[0] = slices.Delete(p.Steps[0], 4, 5)
			p.Steps[2] = slices.Delete(p.Steps[2], 3, 4)
		}},
		{"slot 9 of 4", func(p *plan.Plan) { p.Steps[0][1].Slot = 9 }},
		{"slot 0 has the size of chunk 0, not 2", func(p *plan.Plan) { p.Steps[0][0].Slot = 0 }},
		{"both sent and received", func(p *plan.Plan) { p.Steps[0][1].Slot, p.Steps[0][1].Chunk = 2, 2 }},
		{"slot 3 is received twice", func(p *plan.Plan) { // once more, and sent once more
			p.Steps[0] = slices.Insert(p.Steps[0], 1, p.Steps[0][1])
			p.Steps[2] = slices.Insert(p.Steps[2], 0, p.Steps[2][0])
		}},
		{"a message after a local step", func(p *plan.Plan) {
			p.Steps[0][1], p.Steps[0][2] = p.Steps[0][2], p.Steps[0][1]
		}},
		{"rank 0, round 0 (receive 3[1] from 2): rank 2 does not send it", func(p *plan.Plan) {
			p.Steps[2] = p.Steps[2][1:]
		}},
		{"rank 0, round 0 (send 2 to 1): rank 1 does not receive", func(p *plan.Plan) {
			p.Steps[1] = slices.Delete(p.Steps[1], 1, 3)
		}},
		{"rank 0, round 0 (1 += 3): the slot holds nothing yet", func(p *plan.Plan) {
			for rank := range p.Steps { // the messages of the first round never happen
				p.Steps[rank] = p.Steps[rank][2:]
			}
		}},
		{"without rank 1's contribution", func(p *plan.Plan) {
			p.Steps[2] = slices.Delete(p.Steps[2], 2, 3)
		}},
	} {
		p := sound()
		test.change(p)
		if err := p.Prove(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("got error %v, want %q", err, test.want)
		}
	}
	large := make1(t, plan.AllGather, plan.Ring, 28)
	for chunk, want := range map[int]string{0: "a0", 25: "z25", 26: "aa26", 27: "ab27"} {
		if got, err := large.Order(5, chunk); got != want || err != nil {
			t.Errorf("chunk %d is %q, want %q (error %v)", chunk, got, want, err)
		}
	}
	if _, err := sound().Order(0, 3); err == nil {
		t.Error("Order of a chunk that is not there: no error")
	}
}

// Results that are wrong though every message arrives.
func TestProveResults(t *testing.T) {
	for text, want := range map[string]string{
		`reduce by tree: 2 ranks, root 0, 1 chunks, 2 slots, 2 rounds
rank 0
  0: receive 1[0] from 1; 0 += 1
  1: send 0 to 1
rank 1
  0: send 0 to 0
  1: receive 0 from 0
`: "rank 1 ends with a0+b0 in slot 0, want b0", // only the root's data may change
		`broadcast by tree: 2 ranks, root 0, 1 chunks, 1 slots, 0 rounds
rank 0
rank 1
`: "rank 1 ends with nothing in slot 0",
		`all-gather by ring: 2 ranks, root 0, 2 chunks, 3 slots, 1 rounds
rank 0
  0: send 0 to 1; receive 1 from 1
rank 1
  0: send 1 to 0; receive 2[0] from 0
`: "rank 1 ends with nothing in slot 0",
		`all-to-all by naive: 2 ranks, root 0, 2 chunks, 4 slots, 1 rounds
rank 0
  0: send 1 to 1; receive 3[0] from 1; 2[0] = 0
rank 1
  0: send 0 to 0; receive 2[1] from 0; 3[1] = 1
`: "",
		`all-to-all by naive: 2 ranks, root 0, 2 chunks, 4 slots, 1 rounds
rank 0
  0: send 1 to 1; receive 3[0] from 1; 2[0] = 0
rank 1
  0: send 0 to 0; receive 3[1] from 0; 2[1] = 1
`: "rank 1 ends with b1 in slot 2, want a1", // in the wrong order
	} {
		p, err := plan.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		err = p.Prove()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("got %v, want %q of\n%s", err, want, text)
		}
	}
}

func TestNewErrors(t *testing.T) {
	for _, test := range []struct {
		op        plan.Op
		algorithm plan.Algorithm
		ranks     int
		option    plan.Option
		want      string
	}{
		{plan.Gather, plan.Ring, 4, nil, "gather has no algorithm ring, it has [naive tree]"},
		{plan.Op(77), plan.Ring, 4, nil, "Op(77) has no algorithm"},
		{plan.AllReduce, plan.Algorithm(77), 4, nil, "no algorithm Algorithm(77)"},
		{plan.AllReduce, plan.Ring, 0, nil, "0 ranks: want 1 to 1024"},
		{plan.AllReduce, plan.Ring, 1025, nil, "1025 ranks"},
		{plan.AllToAll, plan.Ring, 129, nil, "want 1 to 128"},
		{plan.Broadcast, plan.Tree, 4, plan.Root(4), "root 4 of 4 ranks: want 0 to 3"},
		{plan.Broadcast, plan.Tree, 4, plan.Root(-1), "root -1"},
		{plan.AllReduce, plan.Tree, 4, plan.Root(1), "has no root"},
		{plan.AllReduce, plan.Hierarchical, 4, plan.GroupsOf(0), "groups of 0"},
	} {
		if _, err := plan.New(test.op, test.algorithm, test.ranks, test.option); err == nil ||
			!strings.Contains(err.Error(), test.want) {
			t.Errorf("got error %v, want %q", err, test.want)
		}
	}
}
