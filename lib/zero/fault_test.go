package zero_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/zero"
)

// TestFaults has a rank fail, panic, stall or be cancelled, before a step and in it, in every stage. Every other rank gets an
// error that names it, within the group's timeout; whatever is asked of a rank after that says what to do.
func TestFaults(t *testing.T) {
	victim := 0
	for _, form := range toyForms {
		e := warm(t, form)
		leaks := devicetest.NoLeaks(t, threeDevices())
		var all sync.WaitGroup
		for _, at := range []string{"before", "first", "middle", "last"} {
			for _, fault := range traintest.Faults {
				victim = (victim + 1) % three
				c := faultCase{e, at, fault, victim, t.TempDir()}
				all.Go(func() {
					if err := fault.Patiently(c.play); err != nil {
						t.Errorf("stage %d: rank %d %s, %s: %v", form.Stage, c.victim, c.fault, c.at, err)
					}
				})
			}
		}
		all.Wait()
		leaks()
	}
}

// TestHybridFault has a rank of two copies of the state fail or stall before a step. Every other rank gets a failure of the
// group, within its timeout; in the sub-groups ranks have other numbers, and who waits for one that stalls is late as well.
func TestHybridFault(t *testing.T) {
	const ranks = 4
	backend := devicetest.Open(t, ranks)
	e := engine(t, backend, toyRecipe, zero.Options{Stage: 3, Shards: 2})
	play := func(victim int, stalls bool) error {
		var survivors sync.WaitGroup
		survivors.Add(ranks - 1)
		patience := time.Minute // none has to wait for it
		if stalls {
			patience = time.Second
		}
		errs := make([]error, ranks)
		_ = group.Run(t.Context(), ranks, func(ctx context.Context, g group.Group) (err error) {
			me := g.Rank()
			if me != victim {
				defer survivors.Done()
			}
			defer func() { errs[me] = err }()
			rank, err := e.Join(ctx, g, me)
			if err != nil {
				return err
			}
			defer rank.Close()
			if _, err := steady(ctx, rank, 1, toyBatches(2*ranks)); err != nil {
				return err
			}
			if me == victim {
				if stalls {
					survivors.Wait()
				}
				return traintest.ErrLuck
			}
			_, err = steady(ctx, rank, 1, toyBatches(2*ranks))
			return err
		}, group.Timeout(patience))
		for r, err := range errs {
			var failure *group.Failure
			if r != victim && !errors.As(err, &failure) || !stalls && !errors.Is(err, traintest.ErrLuck) {
				return fmt.Errorf("rank %d: %v", r, err)
			}
		}
		return nil
	}
	if err := play(0, false); err != nil { // which compiles
		t.Error(err)
	}
	leaks := devicetest.NoLeaks(t, backend)
	var all sync.WaitGroup
	for victim := range ranks {
		for _, stalls := range []bool{false, true} {
			all.Go(func() {
				if err := play(victim, stalls); err != nil {
					t.Errorf("rank %d is at fault, by stalling: %v: %v", victim, stalls, err)
				}
			})
		}
	}
	all.Wait()
	leaks()
}
