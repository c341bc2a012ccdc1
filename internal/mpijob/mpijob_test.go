package mpijob

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/collective/group"
)

// What a rank has of another's alarm is not its own: neither the alarm, nor a call of its own that the alarm has ended.
func TestHeard(t *testing.T) {
	pair := must.Get(group.New(2))(t)
	const why = "the disk is full"
	alarm := &group.Failure{Rank: 0, Kind: group.KindRecv, Seq: 1, Group: "split #3 color 0", Reason: gaveUp + why}
	ctx, fail := context.WithCancelCause(t.Context())
	c := &Job{Group: pair[1], ctx: ctx}
	own := errors.New("the disk is slow")
	if c.heard(own) {
		t.Error("an error of its own was heard before there was any")
	}
	fail(alarm)
	ended := group.AllReduce(ctx, pair[1], []float32{1}, group.Sum)
	for _, err := range []error{alarm, ended, fmt.Errorf("step 3: %w", ended)} {
		if text := brief(err); !c.heard(err) || text != why {
			t.Errorf("%v: heard %v, in brief %q, want %q", err, c.heard(err), text, why)
		}
	}
	if c.heard(own) || brief(own) != own.Error() {
		t.Errorf("an error of its own was heard, or is %q in brief", brief(own))
	}
}
