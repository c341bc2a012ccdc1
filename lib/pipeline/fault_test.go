package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/pipeline/schedule"
)

// TestFaults has ranks with stages of a model fail, panic, stall or be cancelled, before a step and in it, in one pipeline and in two
// that train together. Every other rank gets an error that names it; whatever is asked of a rank after that says what to do; and
// nothing is left on the devices.
func TestFaults(t *testing.T) {
	victim := 0
	for _, form := range []struct {
		kind     schedule.Kind
		ranks    int
		replicas int
	}{{schedule.KindZBH1, 3, 1}, {schedule.KindPipeDream, 2, 1}, {schedule.Kind1F1B, 2, 2}} {
		const m = 4
		s := newSchedule(t, form.kind, form.ranks, m, 0)
		o := pipeline.Options{Schedule: s, Replicas: form.replicas, Timeout: time.Minute}
		rows := form.replicas * m * microRows
		training{engine: freeEngine(t), options: o, steps: 1, batches: toyBatches(rows)}.run(t) // which compiles
		p, err := freeEngine(t).Pipeline(o)
		if err != nil {
			t.Fatal(err)
		}
		leaks := devicetest.NoLeaks(t, devices())
		ranks := traintest.Ranks[*pipeline.Rank]{Size: p.Ranks(), Batches: toyBatches(rows), Folder: t.TempDir(),
			Join: func(ctx context.Context, g group.Group) (*pipeline.Rank, error) {
				return p.Join(ctx, g, g.Rank()%deviceCount)
			},
			Ask: func(r *pipeline.Rank) map[string]error {
				_, err := r.Params()
				return map[string]error{"Params": err}
			}}
		t.Run(fmt.Sprintf("%s, %d replicas", form.kind, form.replicas), func(t *testing.T) {
			for _, at := range []string{"before", "first", "middle", "last"} {
				for _, fault := range traintest.Faults {
					victim = (victim + 1) % p.Ranks()
					ranks.Play(t, traintest.Case{Fault: fault, At: at, Victim: victim})
				}
			}
		})
		leaks()
	}
}

// TestIdle has a rank join and make no step: the others learn which one it is, within the group's time.
func TestIdle(t *testing.T) {
	const m, ranks = 4, 3
	o := pipeline.Options{Schedule: newSchedule(t, schedule.KindZBH1, ranks, m, 0)}
	batches := toyBatches(m * microRows)
	training{engine: freeEngine(t), options: o, steps: 1, batches: batches}.run(t) // which compiles
	p, err := freeEngine(t).Pipeline(o)
	if err != nil {
		t.Fatal(err)
	}
	idle := func(t *testing.T, idler int) {
		errs := make([]error, ranks)
		var others sync.WaitGroup
		others.Add(ranks - 1)
		_ = group.Run(t.Context(), ranks, func(ctx context.Context, g group.Group) error {
			r, err := p.Join(ctx, g, g.Rank())
			if err != nil {
				return err
			}
			defer r.Close()
			if g.Rank() == idler {
				others.Wait()
				return nil
			}
			defer others.Done()
			_, errs[g.Rank()] = steady(ctx, r, 1, batches)
			return errs[g.Rank()]
		}, group.Timeout(2*time.Second))
		for r, err := range errs {
			var failure *group.Failure
			if r != idler && (!errors.As(err, &failure) || failure.Rank != idler) {
				t.Errorf("rank %d is idle: rank %d: %v", idler, r, err)
			}
		}
	}
	for idler := range ranks {
		synctest.Test(t, func(t *testing.T) { idle(t, idler) }) // by its clock none but the idler is late
	}
}
