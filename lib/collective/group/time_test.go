package group_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/collective/group"
)

// A call takes until its last rank is done, from when its first one began, and every rank is told the same.
func TestTime(t *testing.T) {
	const pause = 20 * time.Millisecond
	took := make([]time.Duration, 3)
	err := group.Run(context.Background(), len(took), func(ctx context.Context, g group.Group) (err error) {
		took[g.Rank()], err = group.Time(ctx, g, func() error {
			time.Sleep(time.Duration(g.Rank()) * pause)
			return nil
		})
		return err
	})
	must.Do(t, err)
	if took[0] != took[1] || took[1] != took[2] || took[0] < 2*pause {
		t.Errorf("the ranks say %v, want the same of each, and at least %v", took, 2*pause)
	}
}

func TestTimeOfAFailure(t *testing.T) {
	broken := errors.New("broken")
	err := group.Run(context.Background(), 2, func(ctx context.Context, g group.Group) error {
		_, err := group.Time(ctx, g, func() error {
			if g.Rank() == 1 {
				return broken
			}
			return nil
		})
		return err
	})
	var failure *group.Failure
	if !errors.Is(err, broken) || !errors.As(err, &failure) || failure.Rank != 1 {
		t.Errorf("%v, want rank 1's error, and rank 0's that names it", err)
	}
}
