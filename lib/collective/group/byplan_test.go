package group

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/collective/plan"
)

// TestByPlanRefused has no view where one of the operations lacks the algorithm.
func TestByPlanRefused(t *testing.T) {
	groups := must.Get(New(4))(t)
	for way, want := range map[plan.Way]string{
		ownPlan(t, 3, 3):       "group: plan: the plan is for 3 ranks, and there are 4",
		ownPlan(t, 4, 8):       "group: the plan of all-gather has 8 chunks for 4 ranks",
		(*plan.Plan)(nil):      "is nil",
		nil:                    "group: ByPlan of nil",
		plan.RecursiveDoubling: "group: plan: reduce-scatter has no algorithm recursive-doubling",
		plan.HalvingDoubling:   "group: plan: all-gather has no algorithm halving-doubling",
	} {
		view, err := ByPlan(groups[0], way)
		if err == nil || view != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// ownPlan is an all-gather of one's own, in which each rank sends each other one all that is its part.
func ownPlan(t *testing.T, ranks, chunks int) *plan.Plan {
	t.Helper()
	p := &plan.Plan{Op: plan.AllGather, Ranks: ranks, Chunks: chunks, Slots: chunks, Rounds: 1}
	p.Steps = make([][]plan.Step, ranks)
	for from := range ranks {
		for to := range ranks {
			for c := from * chunks / ranks; from != to && c < (from+1)*chunks/ranks; c++ {
				p.Steps[from] = append(p.Steps[from], plan.Step{Action: plan.Send, Peer: to, Slot: c, Chunk: c})
				p.Steps[to] = append(p.Steps[to], plan.Step{Action: plan.Receive, Peer: from, Slot: c, Chunk: c})
			}
		}
	}
	must.Do(t, p.Prove())
	return p
}

// TestOwnPlan has a view by a plan of one's own, of one kind of call, and a view of that: each sends by its plan.
func TestOwnPlan(t *testing.T) {
	const ranks = 3
	ring := must.Get(plan.New(plan.AllReduce, plan.Ring, ranks))(t)
	if err := Run(t.Context(), ranks, func(ctx context.Context, g Group) error {
		counted := Count(g)
		view, err := ByPlan(counted, ownPlan(t, ranks, ranks))
		if err == nil {
			view, err = ByPlan(view, ring)
		}
		if err != nil {
			return err
		}
		all, sum := make([]int32, ranks), []int32{1, 2, 3}
		messages := func(do error) int { err = errors.Join(err, do); return counted.Total().Messages }
		gathered := messages(AllGather(ctx, view, []int32{int32(g.Rank())}, all))
		reduced := messages(AllReduce(ctx, view, sum, Sum)) - gathered
		if gathered != ranks-1 || reduced != 2*(ranks-1) || fmt.Sprint(all, sum) != "[0 1 2] [3 6 9]" {
			t.Errorf("%d and %d messages, %v and %v", gathered, reduced, all, sum)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// TestByPlanFails has one rank make a call that cannot be, or be gone: the others get a failure that names it, as they
// do of the group's own way.
func TestByPlanFails(t *testing.T) {
	defer noLeaks(t)()
	const ranks, culprit = 3, 1
	gone := errors.New("gone")
	for name, call := range map[string]func() (Call, error){
		"uneven": func() (Call, error) {
			return callOf(KindReduceScatter, Sum, 0, make([]float32, 4), make([]float32, 2)), nil
		},
		"no type": func() (Call, error) { c := AllReduceCall(make([]float32, 3), Sum); c.Type = 99; return c, nil },
		"mean":    func() (Call, error) { return AllReduceCall(make([]int32, 3), Mean), nil },
		"gone":    func() (Call, error) { return Call{}, gone },
	} {
		errs := make([]error, ranks)
		_ = Run(context.Background(), ranks, func(ctx context.Context, g Group) error {
			view, err := ByPlan(g, plan.Ring)
			if err != nil {
				return err
			}
			c := callOf(KindReduceScatter, Sum, 0, make([]float32, 3), make([]float32, 1))
			if g.Rank() == culprit {
				if c, err = call(); err != nil {
					return err
				}
			}
			errs[g.Rank()] = view.Do(ctx, c)
			return errs[g.Rank()]
		})
		for r, err := range errs {
			var failure *Failure
			if name == "gone" && r == culprit {
				continue
			}
			if !errors.As(err, &failure) || failure.Rank != culprit {
				t.Errorf("%s: rank %d: %v", name, r, err)
			}
		}
	}
}
