package ddp_test

import (
	"context"
	"testing"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/train"
)

// TestHooksTrain trains the toy by one engine, whose hook is now this and now that.
func TestHooksTrain(t *testing.T) {
	const world = 3
	var hook func() ddp.Hook
	e := newEngine(t, devicetest.Open(t, world), train.Recipe{Model: toy.Model(false), Rule: optim.AdamW(1e-2)},
		ddp.Options{BucketBytes: 160, Hook: func() ddp.Hook { return hook() }})

	// Compressed, losses must fall, to not much more than those of an all-reduce.
	t.Run("losses", func(t *testing.T) {
		const steps = 60
		end := func(of func() ddp.Hook) (mean float64) {
			hook = of
			losses := together(t, e, world, steps, toySource(2*world))[0].losses
			if !learned(losses) {
				t.Errorf("%T: losses %v", hook(), losses)
			}
			for _, l := range losses[steps*2/3:] {
				mean += l / (steps / 3)
			}
			return mean
		}
		exact := end(func() ddp.Hook { return plain{} })
		for _, test := range []struct {
			hook   func() ddp.Hook
			factor float64
		}{{ddp.BF16(), 1.05}, {ddp.TopK(0.25), 1.5}, {ddp.PowerSGD(1), 1.5}} {
			got := end(test.hook)
			t.Logf("%T: a loss of %.4f, and %.4f without", test.hook(), got, exact)
			if got > test.factor*exact {
				t.Errorf("more than %g times the loss", test.factor)
			}
		}
	})

	// A rank that goes back to a checkpoint goes on as one that begins there: its hook has forgotten what came after.
	t.Run("loaded", func(t *testing.T) {
		hook = ddp.TopK(0.1)
		dir := t.TempDir()
		batches := toySource(2 * world)
		load := func(ctx context.Context, rank *ddp.Rank) error {
			path, err := checkpoint.Latest(dir)
			if err != nil {
				return err
			}
			c, err := checkpoint.Open(path)
			if err != nil {
				return err
			}
			return rank.Load(ctx, c)
		}
		goesOn := func(begin func(ctx context.Context, rank *ddp.Rank) error) (end result) {
			if err := group.Run(context.Background(), world, func(ctx context.Context, g group.Group) error {
				rank, err := e.Join(ctx, g, g.Rank())
				if err != nil {
					return err
				}
				if err := begin(ctx, rank); err != nil {
					return err
				}
				own, err := steady(ctx, g, rank, 3, batches)
				if g.Rank() == 0 {
					end = own
				}
				return err
			}); err != nil {
				t.Fatal(err)
			}
			return end
		}
		back := goesOn(func(ctx context.Context, rank *ddp.Rank) error {
			if err := rank.Save(ctx, dir, nil, 1); err != nil {
				return err
			}
			inputs, targets, err := batches(7)
			if err != nil {
				return err
			}
			if _, err := rank.Step(ctx, inputs, targets); err != nil {
				return err
			}
			return load(ctx, rank)
		})
		fresh := goesOn(load)
		if name := differ(back.params, fresh.params); name != "" {
			t.Errorf("%s is not the same", name)
		}
	})
}

// plain is the all-reduce as a hook.
type plain struct{}

func (plain) Reduce(ctx context.Context, g group.Group, grads ddp.Gradients) error {
	values, err := grads.Float32()
	if err != nil {
		return err
	}
	return group.AllReduce(ctx, g, values, group.Sum)
}
