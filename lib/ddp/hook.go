package ddp

import (
	"context"
	"errors"
	"fmt"

	"github.com/shardbook/shardbook/internal/engine"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/collective/plan"
)

// Hook communicates a bucket in place of an all-reduce: what PyTorch calls a communication hook. A rank has one of its
// own, which may keep what it likes from step to step. Its one method,
//
//	Reduce(ctx context.Context, g group.Group, grads Gradients) error
//
// replaces the rank's gradients by the sum of all ranks', or what is near to it; all ranks must get the same bits. All
// ranks call it with the same buckets in the same order, one at a time, and it makes what calls on the group it likes.
type Hook = engine.Hook

// Gradients are a rank's gradients of a bucket, in memory that the host reaches: Data, of Type, in which the gradients
// of Params lie one after another, each from its element of Offsets on. Unit is the number of the bucket in the plan.
// The method Float32 returns them as a slice, without a copy, and an error if they have another type.
type Gradients = engine.Gradients

// ByPlan is a hook that all-reduces message by message, by an algorithm of package plan or a plan of one's own:
// slower than the group's own way, but every message can be seen and counted (group.Count). It takes float32
// gradients.
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
