package rank_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/collective/group"
)

// TestWithin has a rank of a part of a group give up: the others of the part learn its number in the whole group. An error that is not
// of the part's own keeps its numbers.
func TestWithin(t *testing.T) {
	errs := make([]error, 4)
	_ = group.Run(t.Context(), 4, func(ctx context.Context, g group.Group) error {
		me := g.Rank()
		part, err := g.Split(ctx, me/2, me)
		if err != nil {
			return err
		}
		if me == 3 {
			ended, cancel := context.WithCancel(ctx)
			cancel()
			ctx = ended
		}
		errs[me] = rank.Within([]int{me / 2 * 2, me/2*2 + 1}, group.Barrier(ctx, part))
		return nil
	})
	for r, err := range errs {
		if r < 2 {
			if err != nil {
				t.Errorf("rank %d, of the other part: %v", r, err)
			}
			continue
		}
		var failure *group.Failure
		if !errors.As(err, &failure) || failure.Rank != 1 || !strings.HasPrefix(err.Error(), "rank 3, in a group of the ranks [2 3]: barrier #1") {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	if err := rank.Within([]int{2, 3}, &group.Failure{Rank: 1}); !strings.HasPrefix(err.Error(), "in a group of the ranks [2 3]: ") {
		t.Errorf("a failure of the whole group: %v", err)
	}
}
