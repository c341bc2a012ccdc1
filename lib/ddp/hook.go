package ddp

import (
	"context"
	"errors"
	"fmt"

	"github.com/shardbook/shardbook/internal/engine"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/collective/plan"
)

// Hook replaces the all-reduce of a bucket: PyTorch's communication hooks. Each rank has its own hook, which may store
// data from step to step. Its one method,
//
//	Reduce(ctx context.Context, g group.Group, grads Gradients) error
//
// replaces this rank's gradients by the sum of all ranks' gradients or an approximation; all ranks must get the same
// bits. All ranks call it with the same buckets in the same order, one at a time. It may use the group as it likes.
type Hook = engine.Hook

// Gradients are a rank's gradients of a bucket in host memory: the gradients of Params, one after another in Data, from
// the elements in Offsets on. Type is their data type, and Unit the bucket's number in the plan. The method Float32
// returns them as a slice, without a copy; other types are an error.
type Gradients = engine.Gradients

// ByPlan returns a hook that all-reduces by an algorithm of package plan, or by a plan of the caller: slower than the
// group's all-reduce, but each message can be seen and counted (group.Count). Gradients must be float32.
func ByPlan(way plan.Way) func() Hook {
	return func() Hook { return &planned{way: way} }
}

type planned struct {
	way  plan.Way
	plan *plan.Plan
}

func (p *planned) Reduce(ctx context.Context, g group.Group, grads Gradients) error {
	if p.plan == nil {
		if p.way == nil {
			return errors.New("ddp: ByPlan has no way: give it an algorithm, such as plan.Ring, or a plan")
		}
		plans, err := p.way.For(g.Size(), plan.AllReduce)
		if err != nil {
			return fmt.Errorf("ddp: %w", err)
		}
		p.plan = plans[0]
	}
	values, err := grads.Float32()
	if err != nil {
		return err
	}
	return group.RunPlan(ctx, g, p.plan, values, group.Sum)
}
