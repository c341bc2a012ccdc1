package paramserver_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/paramserver"
	"github.com/shardbook/shardbook/lib/train"
)

// TestFaults has a rank fail, panic, stall or be cancelled, before a step and where it pushes the first, the middle or
// the last bucket, in every form. Every other rank gets an error that names it, within the group's timeout.
// Asynchronous ranks do not wait for each other in a step: they notice in the next call that all make, here of the mean
// of the losses.
func TestFaults(t *testing.T) {
	for form := range toyForms {
		t.Run(form, func(t *testing.T) {
			e := warm(t, form)
			defer devicetest.NoLeaks(t, threeDevices())()
			ranks := traintest.Ranks[*pusher]{Size: world, Folder: t.TempDir(),
				Batches: toyRows(form, world),
				Join: func(ctx context.Context, g group.Group) (*pusher, error) {
					rank, err := e.Join(ctx, &only{g.(traintest.Trap), pushes}, g.Rank())
					return &pusher{rank, g}, err
				}}
			for n, at := range []string{"before", "first", "middle", "last"} {
				for m, fault := range traintest.Faults {
					ranks.Play(t, traintest.Case{At: at, Fault: fault, Victim: (n + m) % world})
				}
			}
		})
	}
}

// pusher is a rank as a train.Trainer: the loss of its steps is that of the full batch.
type pusher struct {
	*paramserver.Worker
	g group.Group
}

func (p *pusher) Step(ctx context.Context, inputs, targets *tensors.Tensor) (train.Metrics, error) {
	m, err := p.Worker.Step(ctx, inputs, targets)
	if err == nil {
		m.Loss, err = paramserver.Mean(ctx, p.g.(traintest.Trap).Group, m.Loss)
	}
	return m.Metrics, err
}

// TestEndedContext has ranks begin a step after another has failed and their context has ended: their errors still name
// it.
func TestEndedContext(t *testing.T) {
	for form := range toyForms {
		e := warm(t, form)
		leaks := devicetest.NoLeaks(t, threeDevices())
		ranks, errs := make([]*paramserver.Worker, world), make([]error, world)
		_ = group.Run(context.Background(), world, func(ctx context.Context, g group.Group) (err error) {
			me := g.Rank()
			if ranks[me], err = e.Join(ctx, g, me); err != nil {
				return err
			}
			if err := group.Barrier(ctx, g); err != nil || me == 2 {
				return errors.Join(err, traintest.ErrLuck)
			}
			<-ctx.Done()
			inputs, targets := toyRows(form, world)(0)
			_, errs[me] = ranks[me].Step(ctx, inputs, targets)
			return errs[me]
		})
		for _, err := range errs[:2] {
			if err := names(2, err); err != nil || !errors.Is(errs[0], traintest.ErrLuck) {
				t.Errorf("%s: %v", form, err)
			}
		}
		for _, rank := range ranks {
			rank.Close()
		}
		leaks()
	}
}

// TestFailedSave has a rank die while the ranks agree on what they save.
func TestFailedSave(t *testing.T) {
	const form = "servers"
	e := warm(t, form)
	for n := range 6 {
		leaks := devicetest.NoLeaks(t, threeDevices())
		ranks, errs := make([]*paramserver.Worker, world), make([]error, world)
		_ = group.Run(context.Background(), world, func(ctx context.Context, g group.Group) (err error) {
			me := g.Rank()
			view := &only{traintest.NewTrap(g, func() error { return traintest.ErrLuck }),
				func(call group.Call) bool { return call.Kind == group.KindAllGather }}
			if ranks[me], err = e.Join(ctx, view, me); err != nil {
				return err
			}
			if me == 1 {
				view.Arm("last", int64(n)+1)
			}
			errs[me] = ranks[me].Save(ctx, t.TempDir(), nil, 1)
			return errs[me]
		})
		for _, r := range []int{0, 2} {
			if err := names(1, errs[r]); err != nil {
				t.Errorf("call %d: rank %d: %v", n, r, err)
			}
		}
		if !strings.Contains(errs[1].Error(), traintest.ErrLuck.Error()) {
			t.Errorf("call %d: rank 1: %v", n, errs[1])
		}
		for _, rank := range ranks {
			rank.Close()
		}
		leaks()
	}
}
