package group

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/compute/dtypes/float16"

	"github.com/shardbook/shardbook/lib/collective/plan"
)

// ByPlan returns a view of a group whose all-reduces, all-gathers and reduce-scatters go message by message, by an
// algorithm of package plan: slower than the group's own way, but every message can be seen and counted (see
// [Count]). By a plan of one's own those of one kind do; a view of a view has several. Other calls, those that are
// started in the background, and sub-groups are the group's. It is an error if the algorithm cannot do one of the
// three with so many ranks, or the plan none of them.
func ByPlan(g Group, way plan.Way) (Group, error) {
	if way == nil {
		return nil, errors.New("group: ByPlan has no way: give it an algorithm, such as plan.Ring, or a plan")
	}
	kinds := map[plan.Op]Kind{
		plan.AllReduce: KindAllReduce, plan.AllGather: KindAllGather, plan.ReduceScatter: KindReduceScatter}
	plans, err := way.For(g.Size(), plan.AllReduce, plan.AllGather, plan.ReduceScatter)
	if err != nil {
		return nil, fmt.Errorf("group: %w", err)
	}
	p := &planned{Group: g, plans: map[Kind]*plan.Plan{}}
	for _, one := range plans {
		if one.Op != plan.AllReduce && one.Chunks != one.Ranks { // a part of a call would not be one of the plan's
			return nil, fmt.Errorf("group: the plan of %v has %d chunks for %d ranks: have one for each",
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
	switch call.Type {
	case Float32:
		return byPlan[float32](ctx, p, call)
	case Float64:
		return byPlan[float64](ctx, p, call)
	case BFloat16:
		return byPlan[bfloat16.BFloat16](ctx, p, call)
	case Float16:
		return byPlan[float16.Float16](ctx, p, call)
	case Int32:
		return byPlan[int32](ctx, p, call)
	case Int64:
		return byPlan[int64](ctx, p, call)
	}
	return byPlan[uint8](ctx, p, call)
}

// byPlan makes a call by its plan, which works in place on one buffer.
func byPlan[T Element](ctx context.Context, p *planned, call Call) error {
	in, out := sliceOf[T](call.In), sliceOf[T](call.Out)
	one, r := p.plans[call.Kind], p.Rank()
	switch call.Kind {
	case KindAllGather:
		copy(out[r*len(in):], in)
		return RunPlan(ctx, p.Group, one, out, call.Op)
	case KindReduceScatter:
		sums := append([]T{}, in...)
		err := RunPlan(ctx, p.Group, one, sums, call.Op)
		copy(out, sums[r*len(out):])
		return err
	}
	copy(out, in)
	return RunPlan(ctx, p.Group, one, out, call.Op)
}

// sliceOf is a buffer as a slice.
func sliceOf[T Element](b Buffer) []T { return unsafe.Slice((*T)(b.Data), b.Len) }
