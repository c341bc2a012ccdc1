package paramserver

import (
	"context"
	"errors"
	"fmt"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/params"
)

// Save writes the run as the checkpoint of its step into the folder dir, with the caller's metadata: see
// train.Recipe.Save. It is a collective call, after which all ranks know that the checkpoint is there, or get the error;
// rank 0 writes it.
func (r *Rank) Save(ctx context.Context, dir string, meta any, keep int) error {
	if r.lost != nil {
		return r.lost
	}
	state, err := r.collect(ctx)
	if err != nil {
		return r.lose(err)
	}
	defer rank.Free(state...)
	failed := []int32{0}
	if r.g.Rank() == 0 {
		if _, err = r.engine.recipe.Save(ctx, dir, state, meta, keep); err != nil {
			failed[0] = 1
		}
	}
	if e := group.Broadcast(ctx, r.g, failed, 0); e != nil {
		return r.lose(errors.Join(err, e))
	}
	if failed[0] != 0 && err == nil {
		err = fmt.Errorf("paramserver: rank 0 could not save the checkpoint; %w", rank.ErrElsewhere)
	}
	return err
}

// Load puts a checkpoint's state in the place of the run's: see train.Run.Load. It is a collective call; rank 0 reads the
// checkpoint, and the others may give nil.
func (r *Rank) Load(ctx context.Context, c *checkpoint.Checkpoint) error {
	if r.lost != nil {
		return r.lost
	}
	step := []int32{-1}
	state, err := params.Zeros(r.engine.recipe.State())
	if r.g.Rank() == 0 && err == nil {
		var read []*tensors.Tensor
		if read, err = r.engine.recipe.Read(ctx, c); err == nil {
			state, step[0] = read, int32(c.Step)
		}
	}
	if e := group.Broadcast(ctx, r.g, step, 0); e != nil {
		return r.lose(errors.Join(err, e))
	}
	if step[0] < 0 {
		if err == nil {
			err = fmt.Errorf("paramserver: rank 0 could not read the checkpoint; %w", rank.ErrElsewhere)
		}
		return err
	}
	if err := r.spread(ctx, state); err != nil {
		return r.lose(err)
	}
	r.steps = int(step[0])
	return nil
}
