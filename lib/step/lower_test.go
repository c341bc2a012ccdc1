package step

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestWaits: waiting for sends changes no times, at any costs.
func TestWaits(t *testing.T) {
	random := rand.New(rand.NewPCG(15, 16))
	waits := 0
	for range 600 {
		p := randomSchedule(random)
		q, err := p.WithMessages()
		if err != nil {
			t.Fatal(err)
		}
		without := *q
		without.Ranks = slices.Clone(q.Ranks)
		for r, list := range q.Ranks {
			without.Ranks[r] = slices.DeleteFunc(slices.Clone(list), func(op Op) bool { return op.Kind == Wait })
			waits += len(list) - len(without.Ranks[r])
		}
		c := randomCosts(random, len(p.Blocks))
		if got, want := simulated(t, q, c), simulated(t, &without, c); !reflect.DeepEqual(got.Spans, want.Spans) {
			t.Fatalf("%v%vwithout waits\n%v", q, got, want)
		}
	}
	if waits < 500 {
		t.Errorf("%d waits: the test needs more", waits)
	}
}

// TestMessages: messages do not change the rest of a list; a Send follows the pass that makes its value, and a Recv
// begins one pass before the pass that needs it, or earlier for a later message of the same rank.
func TestMessages(t *testing.T) {
	random := rand.New(rand.NewPCG(17, 18))
	for range 600 {
		p := randomSchedule(random)
		q, err := p.WithMessages()
		if err != nil {
			t.Fatal(err)
		}
		for r, list := range q.Ranks {
			passes := slices.DeleteFunc(slices.Clone(list), func(op Op) bool { return !op.Kind.Pass() })
			if !slices.Equal(passes, p.Ranks[r]) {
				t.Fatalf("%vrank %d becomes\n%v", p, r, q)
			}
			begun := 0 // passes
			for i, op := range list {
				if op.Kind.Pass() {
					begun++
				}
				if op.Kind == Send && !slices.ContainsFunc(list[max(0, i-1):i],
					func(o Op) bool { return o.Micro == op.Micro && o.Block == op.Block }) {
					t.Fatalf("rank %d, position %d: %v is not behind its pass\n%v", r, i, q.Text(op), q)
				}
				if op.Kind == Recv && !slices.ContainsFunc(q.Ranks[r][i:], func(later Op) bool {
					need := firstUse(passes, later)
					return later.Kind == Recv && later.Peer == op.Peer && need >= 0 && need <= begun+1
				}) {
					t.Fatalf("rank %d, position %d: %v is begun early\n%v", r, i, q.Text(op), q)
				}
			}
		}
	}
}

// firstUse returns the pass that needs a received value.
func firstUse(passes []Op, recv Op) int {
	return slices.IndexFunc(passes, func(op Op) bool {
		return op.Block == recv.Block && op.Micro == recv.Micro && (op.Kind == Forward) == (recv.What == Activation) &&
			op.Kind != WeightGrad && op.Kind != Update
	})
}

func TestWithMessagesRefused(t *testing.T) {
	p := parsed(t, small)
	q, err := p.WithMessages()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.WithMessages(); err == nil || !strings.Contains(err.Error(), "has messages already") {
		t.Errorf("messages twice: %v", err)
	}
	p.Ranks[0] = p.Ranks[0][1:]
	if _, err := p.WithMessages(); err == nil ||
		!strings.Contains(err.Error(), "no forward pass of the micro-batch before it") {
		t.Errorf("a pass less: %v", err)
	}
}

// TestManyOwners has each micro-batch on a rank of its own, and a reduce between all.
func TestManyOwners(t *testing.T) {
	const ranks = 300
	p := &Plan{Name: "data parallel", Micro: ranks, Every: ranks, Weights: Flush}
	p.Blocks, p.Units = Blocks(1)
	for r := range ranks {
		p.Ranks = append(p.Ranks, []Op{{Kind: Forward, Micro: r}, {Kind: Backward, Micro: r},
			{Kind: Update, Micro: ranks - 1}})
	}
	if err := p.Check(); err != nil {
		t.Error(err)
	}
}

func TestKindString(t *testing.T) {
	var words []string
	for _, k := range []Kind{Forward, Backward, InputGrad, WeightGrad, Recompute, Update, Recv, 'y'} {
		words = append(words, k.String())
	}
	const want = `forward, backward, input gradient, weight gradient, recompute, update, receive, kind 'y'`
	if got := strings.Join(words, ", "); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestVersionsErrors(t *testing.T) {
	// Rank 1 has not made the version that rank 0 used for micro-batch 1.
	p := parsed(t, "schedule x stages=2 microbatches=2 every=1 weights=vertical\n"+
		"rank 0: 0F0 0B0 0U0 0F1 0B1 0U1\nrank 1: 1F0 1B0 1F1 1U0 1B1 1U1")
	const want = "rank 1, position 2, 1F1: it needs version 1 of the weights, and the rank has only version 0"
	_, versions := p.Versions()
	_, kept := p.WeightVersions()
	for _, err := range []error{p.Check(), versions, kept} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
