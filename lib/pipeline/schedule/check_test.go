package schedule

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// TestCheckKinds: all named schedules can be run, in every small size.
func TestCheckKinds(t *testing.T) {
	sizes(Kinds(), 6, 12, 3, func(kind Kind, d, m, v int, s Schedule, have bool) {
		if !have {
			return
		}
		if err := s.Check(); err != nil {
			t.Errorf("%s, %d ranks, %d micro-batches, %d chunks: %v", kind, d, m, v, err)
		}
		if d <= 3 && m <= 6 && !dumbValid(s) {
			t.Errorf("%s, %d ranks, %d micro-batches, %d chunks: the second checker refuses it", kind, d, m, v)
		}
	})
}

// some returns a random named schedule of at most these sizes.
func some(rng *rand.Rand, ranks, microbatches int) Schedule {
	for {
		kind := Kinds()[rng.IntN(len(Kinds()))]
		v := 1
		if kind.Chunked() {
			v += rng.IntN(3)
		}
		if s, err := New(kind, 1+rng.IntN(ranks), 1+rng.IntN(microbatches), v); err == nil {
			return s
		}
	}
}

// mutate changes a schedule a little.
func mutate(rng *rand.Rand, s *Schedule) (what string) {
	r := rng.IntN(len(s.Ranks))
	list := s.Ranks[r]
	i := rng.IntN(len(list))
	j := rng.IntN(len(list))
	if rng.IntN(2) == 0 { // close by, where more stays possible
		j = min(i+1+rng.IntN(3), len(list)-1)
	}
	switch kind := rng.IntN(8); kind {
	case 0:
		s.Ranks[r] = slices.Delete(slices.Clone(list), i, i+1)
		return fmt.Sprintf("rank %d without %v", r, list[i])
	case 1:
		s.Ranks[r] = slices.Insert(slices.Clone(list), j, list[i])
		return fmt.Sprintf("rank %d with %v twice", r, list[i])
	case 2, 3:
		list[i], list[j] = list[j], list[i]
		return fmt.Sprintf("rank %d with %v and %v exchanged", r, list[i], list[j])
	case 4, 5:
		a := list[i]
		s.Ranks[r] = slices.Insert(slices.Delete(slices.Clone(list), i, i+1), min(j, len(list)-1), a)
		return fmt.Sprintf("rank %d with %v moved to %d", r, a, j)
	case 6:
		to := rng.IntN(len(s.Ranks))
		s.Ranks[to] = append(s.Ranks[to], list[i])
		return fmt.Sprintf("%v of rank %d on %d too", list[i], r, to)
	default:
		s.Weights = []Weights{Flush, Stash, Vertical, Double}[rng.IntN(4)]
		return "with weights " + string(s.Weights)
	}
}

// TestCheckMutations: what a change makes of a schedule is refused just where a second checker refuses it.
func TestCheckMutations(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	good, bad := 0, 0
	for range 6000 {
		s := some(rng, 4, 8)
		before := s.String()
		what := mutate(rng, &s)
		if rng.IntN(4) == 0 && len(s.Ranks[0]) > 0 && slices.IndexFunc(s.Ranks, func(l []Action) bool { return len(l) == 0 }) < 0 {
			what += ", " + mutate(rng, &s)
		}
		err := s.Check()
		if err == nil {
			good++
		} else {
			bad++
		}
		if want := dumbValid(s); (err == nil) != want {
			t.Fatalf("%s%s: Check says %v, the second checker %v\n%v", before, what, err, want, s)
		}
	}
	if good < 500 || bad < 500 {
		t.Errorf("%d schedules were good and %d bad: the test needs both", good, bad)
	}
}

// TestCheckErrors: errors say where, and what is wrong.
func TestCheckErrors(t *testing.T) {
	const head = "schedule x stages=2 microbatches=2\n"
	for _, c := range []struct{ text, want string }{
		{"schedule x stages=2 microbatches=2", "no ranks"},
		{head + "rank 0: 0F0", "1 actions are too few for 2 stages and 2 micro-batches"},
		{head + "rank 0: 0F0 0F1 0B0 0B1 0U1\nrank 1: 1F0 1F1 1B0 2B1 1U1", "rank 1, position 3, 2B1: stage 2: the model has stages 0 to 1"},
		{head + "rank 0: 0F0 0F1 0B0 0B1 0U1\nrank 1: 1F0 1F2 1B0 1B1 1U1", "micro-batch 2: there are micro-batches 0 to 1"},
		{head + "rank 0: 0F0 0F1 0B0 0B1 0U1\nrank 1: 1F0 1B0 1B1 1U1", "rank 1, position 2, 1B1: it comes before the forward pass"},
		{head + "rank 0: 0F0 0F1 0B0 0B1 0U1\nrank 1: 1F0 1B0 1U1", "stage 1 has no forward pass for micro-batch 1: add 1F1"},
		{head + "rank 0: 0F0 0F1 0B0 0B1 0U1\nrank 1: 1F0 1F1 1B0 1U1", "stage 1 has no backward pass for micro-batch 1: add 1B1 to rank 1"},
		{head + "rank 0: 0F0 0F1 0B0 0B1 0U1\nrank 1: 1F0 1F1 1B0 1I1 1U1", "stage 1 has no weight gradient for micro-batch 1: add 1W1"},
		{head + "rank 0: 0F0 0F1 0F0 0B0 0B1 0U1\nrank 1: 1F0 1F1 1B0 1B1 1U1", "0F0: it is at position 0 of rank 0 already"},
		{head + "rank 0: 0F0 0F1 0B0 0B1 0U1\nrank 1: 1F0 1F1 1B0 1I0 1B1 1U1", "1I0: rank 1 has 1B0 at position 2 already: keep B, or I and W"},
		{head + "rank 0: 0F0 0F1 0B0 0B1 0U1\nrank 1: 1F0 1F1 1W0 1I0 1B1 1U1", "1W0: it comes before the input gradient"},
		{head + "rank 0: 0F0 0F1 0B0 0B1 0U1\nrank 1: 1F0 1F1 1B0 1U1\nrank 2: 1B1 1U1", "rank 1 has the forward pass of the micro-batch"},
		{head + "rank 0: 0F0 0F1 1F0 1F1 1B1 1B0 0B0 0B1 0U1 1U1", "1B0: the stage's gradient for micro-batch 1 came before"},
		{head + "rank 0: 0F0 0F1 0B0 0U1 0B1\nrank 1: 1F0 1F1 1B0 1B1 1U1", "0B1: the update that its gradient belongs in, 0U1, came before"},
		{head + "rank 0: 0F0 0F1 0B0 0B1\nrank 1: 1F0 1F1 1B0 1B1 1U1", "rank 0 has no update 0U1"},
		{head + "rank 0: 0F0 0F1 0B0 0B1 0U0\nrank 1: 1F0 1F1 1B0 1B1 1U1", "0U0: the next update of the stage is 0U1"},
		{head + "rank 0: 0F0 0F1 0B0 0B1 0U1 0U1\nrank 1: 1F0 1F1 1B0 1B1 1U1", "0U1: stage 0 has had its last update"},
		{head + "rank 0: 0F0 1F1 0F1 1F0 1B0 1B1 0B0 0B1 0U1 1U1", "position 1, 1F1: it needs 0F1, which the rank does later, at position 2"},
		{"schedule x stages=1 microbatches=3 every=2\nrank 0: 0F0 0F1 0F2", "an update every 2 micro-batches: give a divisor of the 3"},
		{"schedule x stages=1 microbatches=2 every=1\nrank 0: 0F0 0B0 0U0 0F1 0B1 0U1", `with weights "flush": give 2, or other weights`},
		{"schedule x stages=1 microbatches=2 every=1 weights=stash\nrank 0: 0F0 0B0 0F1 0B1 0U0 0U1", "does not belong in the update 0U0"},
		{"schedule x stages=1 microbatches=3 every=1 weights=double\nrank 0: 0F0 0F1 0F2 0B0 0U0 0B1 0U1 0B2 0U2",
			"rank 0, position 2, 0F2: it needs version 1 of the weights, and the rank has made only 0 by then"},
		{head + "rank 0: 0F0 0B0 0F1 0B1 0U1\nrank 1: 1F0 1F1 1B0 1B1 1U1", "wait for each other"},
		{head + "rank 0: 0F0 1F0 1B0 0B0 0U1 1U1\nrank 1: 0F1 1F1 1B1 0B1 1U1 0U1",
			"rank 0 is at 0U1 and waits for 0U1 of rank 1; rank 1 is at 1U1 and waits for 1U1 of rank 0"},
	} {
		s, err := Parse(c.text)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Check(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s\nis %v, want %q", c.text, err, c.want)
		}
	}
	for _, s := range []Schedule{
		{},
		{Microbatches: 1, Every: 1, Weights: Flush, Ranks: [][]Action{{{Forward, 0, 0}}}},
		{Stages: 1, Every: 1, Weights: Flush, Ranks: [][]Action{{{Forward, 0, 0}}}},
		{Stages: 1, Microbatches: 1, Weights: Flush, Ranks: [][]Action{{{Forward, 0, 0}}}},
		{Stages: 1, Microbatches: 1, Every: 1, Ranks: [][]Action{{{Forward, 0, 0}}}},
		{Stages: 1, Microbatches: 1, Every: 1, Weights: Flush, Ranks: [][]Action{{{'x', 0, 0}}}},
		{Stages: 1 << 62, Microbatches: 1 << 62, Every: 1 << 62, Weights: Flush, Ranks: [][]Action{{{Forward, 0, 0}}}},
	} {
		if err := s.Check(); err == nil {
			t.Errorf("%+v: no error", s)
		}
	}
}
