//go:build mpi

package mpi

import (
	"context"
	"errors"
	"fmt"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// leftError is a rank that closed the group while another waits for it.
type leftError int

func (e leftError) Error() string { return fmt.Sprintf("rank %d left", int(e)) }

// fail ends the group: the rank is at fault in the call, for the reason.
func (g *ranks) fail(t *task, rank int, reason string, err error) error {
	reached := t.seq
	if t.Kind == group.KindSend || t.Kind == group.KindRecv {
		reached = 0
	}
	return g.post.fail(&group.Failure{Rank: rank, Kind: t.Kind, Seq: t.seq, Reason: reason, Err: err}, reached)
}

// blame makes the group's failure of the error that ended a wait. The ranks in missing
// were waited for, to do what was due.
func (g *ranks) blame(t *task, err error, due string, missing []int) error {
	var left leftError
	switch {
	case err == g.post.reason():
		return err
	case errors.As(err, &left):
		return g.fail(t, int(left), fmt.Sprintf("has closed the job (%s)", g.post.whereabouts(int(left))), nil)
	case errors.Is(err, context.DeadlineExceeded) && len(missing) > 0:
		reason := fmt.Sprintf("did not %s within %v (%s)", due, t.length(), g.post.whereabouts(missing[0]))
		if len(missing) > 1 {
			reason += fmt.Sprintf(", nor did ranks %v", missing[1:])
		}
		return g.fail(t, missing[0], reason, err)
	case err == t.ctx.Err():
		err = ended(t.ctx)
		return g.fail(t, g.rank, "gave up: "+err.Error(), err)
	}
	return g.fail(t, g.rank, "cannot go on: "+err.Error(), err)
}

// ended is why a context ended.
func ended(ctx context.Context) error {
	err := ctx.Err()
	if cause := context.Cause(ctx); cause != err {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return err
}
