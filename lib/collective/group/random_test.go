package group

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/compute/dtypes/float16"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/collective/plan"
)

// TestRunPlan runs plans of all operations by all algorithms, for random numbers of ranks, lengths, roots and types,
// and compares the results with the definitions and the messages with the plans.
func TestRunPlan(t *testing.T) {
	defer noLeaks(t)()
	cases := 300
	if raceEnabled {
		cases /= 10
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for _, op := range plan.Ops() {
		for _, algorithm := range plan.Algorithms(op) {
			for range cases {
				ranks, seed := 1+rng.IntN(8), rng.Uint64()
				var options []plan.Option
				if op == plan.Broadcast || op == plan.Reduce || op == plan.Gather || op == plan.Scatter {
					options = append(options, plan.Root(rng.IntN(ranks)))
				}
				p, err := plan.New(op, algorithm, ranks, options...)
				if err == nil {
					err = []func(*plan.Plan, uint64) error{playPlan[float32], playPlan[float64],
						playPlan[bfloat16.BFloat16], playPlan[float16.Float16], playPlan[int32], playPlan[int64],
						playPlan[uint8]}[rng.IntN(7)](p, seed)
				}
				if err != nil {
					t.Fatalf("%v by %v, %d ranks, seed %d: %v", op, algorithm, ranks, seed, err)
				}
			}
		}
	}
}

// TestMutations breaks plans at random. Some changes must always be refused; of the others, what Prove accepts must run
// and give the right result.
func TestMutations(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	accepted := 0
	for _, op := range plan.Ops() {
		for _, algorithm := range plan.Algorithms(op) {
			if op == plan.Broadcast && algorithm == plan.HalvingDoubling {
				continue // it sends some chunks twice, so that a message may be missing
			}
			for range 300 {
				p := must.Get(plan.New(op, algorithm, 2+rng.IntN(7)))(t)
				rank := rng.IntN(p.Ranks)
				if len(p.Steps[rank]) == 0 {
					continue
				}
				i := rng.IntN(len(p.Steps[rank]))
				before := p.Steps[rank][i]
				what, fatal := mutate(p, rank, i, rng)
				if p.Prove() != nil {
					continue
				}
				accepted++
				if fatal {
					t.Fatalf("%s of rank %d, %+v, went unnoticed in\n%v", what, rank, before, p)
				}
				if err := playPlan[int32](p, rng.Uint64()); err != nil {
					t.Fatalf("%s of rank %d, %+v: Prove accepts what is wrong: %v\n%v", what, rank, before, err, p)
				}
			}
		}
	}
	if accepted == 0 {
		t.Error("no change was harmless, so that nothing was compared")
	}
}

// mutate changes step i of a rank in one way, and tells whether any plan is wrong after it.
func mutate(p *plan.Plan, rank, i int, random *rand.Rand) (what string, fatal bool) {
	steps := &p.Steps[rank]
	s := &(*steps)[i]
	switch random.IntN(9) {
	case 0:
		*steps = slices.Delete(*steps, i, i+1)
		return "drop", true
	case 1:
		fatal = s.Action != plan.Copy // copying again changes nothing
		*steps = slices.Insert(*steps, i, *s)
		return "duplicate", fatal
	case 2:
		if s.Action <= plan.Receive {
			s.Peer = (s.Peer + 1 + random.IntN(p.Ranks)) % (p.Ranks + 1)
			return "change the peer", true
		}
	case 3:
		s.Chunk++
		return "change the chunk", true
	case 4:
		if s.Action <= plan.Receive {
			s.Round = (s.Round + 1 + random.IntN(p.Rounds+1)) % (p.Rounds + 2)
			return "change the round", true
		}
	case 5:
		s.Slot = random.IntN(p.Slots)
	case 6:
		s.From = random.IntN(p.Slots)
	case 7:
		j := random.IntN(len(*steps))
		(*steps)[i], (*steps)[j] = (*steps)[j], (*steps)[i]
	case 8:
		s.Action = plan.Action(random.IntN(5))
	}
	return "change", false
}

// playPlan runs a plan on whole numbers, of which sums are the same in any order, with any length of the whole buffer.
func playPlan[T Element](p *plan.Plan, seed uint64) error {
	rng := rand.New(rand.NewPCG(seed, 2))
	ranks, length := p.Ranks, rng.IntN(40)
	op := []ReduceOp{Sum, Max, Min, Mean}[rng.IntN(4)]
	if op == Mean && TypeOf[T]() >= Int32 {
		op = Sum
	}
	if p.Op == plan.AllToAll {
		length -= length % p.Chunks
	}
	bufs, before, views := make([][]T, ranks), make([][]T, ranks), make([]*counted, ranks)
	for r := range ranks {
		for range length {
			bufs[r] = append(bufs[r], fromNumber[T](float64(rng.IntN(5))))
		}
		before[r] = slices.Clone(bufs[r])
	}
	if err := Run(context.Background(), ranks, func(ctx context.Context, g Group) error {
		views[g.Rank()] = Count(g).(*counted)
		return RunPlan(ctx, views[g.Rank()], p, bufs[g.Rank()], op)
	}, Timeout(time.Minute)); err != nil {
		return err
	}
	if err := countedAsPlanned(p, views, length, TypeOf[T]().Size()); err != nil {
		return err
	}
	for r := range ranks {
		for chunk := range p.Chunks {
			owner := chunk * ranks / p.Chunks // of the part that the chunk is in
			for i, end := plan.Cut(length, p.Chunks, chunk); i < end; i++ {
				want := before[p.Root][i] // of a broadcast or scatter
				switch p.Op {
				case plan.Reduce, plan.AllReduce, plan.ReduceScatter:
					want = reduceColumn(op, before, i)
				case plan.Gather, plan.AllGather:
					want = before[owner][i]
				case plan.AllToAll:
					want = before[owner][r*length/ranks+i%(length/ranks)]
				}
				switch {
				case p.Op == plan.Reduce && r != p.Root:
					want = before[r][i]
				case p.Op == plan.Gather && r != p.Root,
					(p.Op == plan.Scatter || p.Op == plan.ReduceScatter) && r != owner:
					continue
				}
				if bufs[r][i] != want {
					return fmt.Errorf("%v of %v: rank %d, element %d of %d is %v, want %v", op, TypeOf[T](), r, i, length,
						bufs[r][i], want)
				}
			}
		}
	}
	return nil
}

// countedAsPlanned compares what was sent with what the plan says.
func countedAsPlanned(p *plan.Plan, counted []*counted, elements, size int) error {
	want, err := p.Count(elements, size)
	if err != nil {
		return err
	}
	for from, c := range counted {
		if !slices.Equal(c.sent, want.Links[from]) || c.Total() != want.Sent[from] {
			return fmt.Errorf("rank %d sent %+v, and the plan says %+v", from, c.sent, want.Links[from])
		}
	}
	return nil
}
