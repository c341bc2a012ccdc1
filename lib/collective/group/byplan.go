package group

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/shardbook/shardbook/lib/collective/plan"
)

// ByPlan returns a view of a group that carries out all-reduces, all-gathers and reduce-scatters by sends and receives,
// by an algorithm of package plan, as [RunPlan] does: slower than the group's own collectives, but every message can be
// seen and counted (see [Count]). A plan of the caller's replaces the operation that it is for; a view of a view
// replaces several. Other calls, calls in the background, and sub-groups are the group's own. It is an error if the
// algorithm lacks one of the three operations, or the plan is for none of them.
func ByPlan(g Group, way plan.Way) (Group, error) {
	if way == nil {
		return nil, errors.New("group: ByPlan of nil: give it an algorithm, such as plan.Ring, or a plan")
	}
	kinds := map[plan.Op]Kind{
		plan.AllReduce: KindAllReduce, plan.AllGather: KindAllGather, plan.ReduceScatter: KindReduceScatter}
	plans, err := way.For(g.Size(), plan.AllReduce, plan.AllGather, plan.ReduceScatter)
	if err != nil {
		return nil, fmt.Errorf("group: %w", err)
	}
	p := &planned{Group: g, plans: map[Kind]*plan.Plan{}}
	for _, one := range plans {
		if one.Op != plan.AllReduce && one.Chunks != one.Ranks { // the parts of a call must be chunks of the plan
			return nil, fmt.Errorf("group: the plan of %v has %d chunks for %d ranks: want one for each",
				one.Op, one.Chunks, one.Ranks)
		}
		p.plans[kinds[one.Op]] = one
	}
	return p, nil
}

type planned struct {
	Group
	plans map[Kind]*plan.Plan
}

// Do implements [Group].
func (p *planned) Do(ctx context.Context, call Call) error {
	if p.plans[call.Kind] == nil {
		return p.Group.Do(ctx, call)
	}
	if err := call.Check(p.Rank(), p.Size()); err != nil {
		return p.Group.Do(ctx, call) // which fails for all ranks
	}
	one, r := p.plans[call.Kind], p.Rank()
	in, out := bytesOf(call.In, call.Type), bytesOf(call.Out, call.Type)
	switch call.Kind { // a plan works in place on one buffer
	case KindAllGather:
		copy(out[r*len(in):], in)
	case KindReduceScatter:
		sums := slices.Clone(in)
		err := runPlan(ctx, p.Group, one, call.Type, call.Op, sums)
		copy(out, sums[r*len(out):])
		return err
	}
	return runPlan(ctx, p.Group, one, call.Type, call.Op, out)
}
