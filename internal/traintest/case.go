package traintest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/train"
)

// Case is a fault of a rank in the second of three steps.
type Case struct {
	Fault  Fault
	At     string // before the step, or in its first, middle or last call of a group
	Victim int
}

func (c Case) String() string { return fmt.Sprintf("rank %d %s, %s", c.Victim, c.Fault, c.At) }

// Rank is a rank of an engine.
type Rank interface {
	comparable
	Step(ctx context.Context, inputs, targets *tensors.Tensor) (train.Metrics, error)
	Steps() int
	Save(ctx context.Context, dir string, meta any, keep int) error
	Load(ctx context.Context, c *checkpoint.Checkpoint) error
	Close() error
}

// Ranks are those that cases are played with.
type Ranks[R Rank] struct {
	Size    int
	Join    func(ctx context.Context, g group.Group) (R, error)
	Batches Batches
	// Parts says that ranks also talk in parts of the group: who waits there for one that waits for a rank that stalls may name it.
	Parts bool
	// Ask asks a lost rank for what else an engine's ranks are asked for: the errors, by method. It may be nil.
	Ask    func(r R) map[string]error
	Folder string // for what nobody may save
}

// Play trains with the fault, and says what is wrong with what the ranks get: each but the victim an error that names it, and whatever
// is asked of a rank after that, what to do.
func (all Ranks[R]) Play(c Case, patience time.Duration) error {
	var survivors sync.WaitGroup
	survivors.Add(all.Size - 1)
	ranks, errs := make([]R, all.Size), make([]error, all.Size)
	train := func(ctx context.Context, g group.Group) (err error) {
		me := g.Rank()
		own, cancel := context.WithCancel(ctx)
		defer cancel()
		strike := func() error { return c.Fault.Strike(survivors.Wait, cancel) }
		view := NewTrap(g, strike)
		if ranks[me], err = all.Join(ctx, view); err != nil {
			return err
		}
		for step := range 3 {
			before := view.Calls()
			if me == c.Victim && step == 1 && c.At == "before" {
				if err := strike(); err != nil {
					return err
				}
			}
			inputs, targets := all.Batches(step)
			if _, err := ranks[me].Step(own, inputs, targets); err != nil {
				return err
			}
			if me == c.Victim && step == 0 {
				view.Arm(c.At, view.Calls()-before)
			}
		}
		return nil
	}
	_ = group.Run(context.Background(), all.Size, func(ctx context.Context, g group.Group) error {
		if g.Rank() != c.Victim {
			defer survivors.Done()
		}
		errs[g.Rank()] = train(ctx, g)
		return errs[g.Rank()]
	}, group.Timeout(patience))
	var wrong []error
	for r, rank := range ranks {
		if err := errs[r]; r != c.Victim && !all.named(c, err) {
			wrong = append(wrong, fmt.Errorf("rank %d: %v; that does not name rank %d", r, err, c.Victim))
		}
		var none R
		if rank == none {
			wrong = append(wrong, fmt.Errorf("rank %d has not joined: %w", r, errs[r]))
			continue
		}
		if err := all.lost(rank); err != nil {
			wrong = append(wrong, fmt.Errorf("rank %d, then: %w", r, err))
		}
	}
	return errors.Join(wrong...)
}

// named says whether another rank's error names the victim.
func (all Ranks[R]) named(c Case, err error) bool {
	return err != nil && (all.Parts && c.Fault == Stalls || strings.Contains(err.Error(), fmt.Sprintf("rank %d", c.Victim)))
}

// lost says what is wrong with what a rank answers when it is lost, and closes it, twice.
func (all Ranks[R]) lost(r R) error {
	ctx := context.Background()
	made := r.Steps()
	inputs, targets := all.Batches(1)
	_, step := r.Step(ctx, inputs, targets) // who failed before it is lost now
	answers := map[string]error{"Step": step, "Save": r.Save(ctx, all.Folder, nil, 1), "Load": r.Load(ctx, nil)}
	if all.Ask != nil {
		for method, err := range all.Ask(r) {
			answers[method] = err
		}
	}
	errs := []error{lost(answers)}
	if r.Steps() != made {
		errs = append(errs, fmt.Errorf("a lost rank has made %d steps, before %d", r.Steps(), made))
	}
	return errors.Join(append(errs, r.Close(), r.Close())...)
}

// lost says which answers of a lost rank, by the method, do not say what to do.
func lost(answers map[string]error) error {
	var errs []error
	for what, err := range answers {
		if err == nil || !strings.Contains(err.Error(), "join a new group and load the last checkpoint") {
			errs = append(errs, fmt.Errorf("%s of a lost rank: %v", what, err))
		}
	}
	return errors.Join(errs...)
}
