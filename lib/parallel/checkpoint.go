package parallel

import (
	"context"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/train"
)

// Save writes the whole state as the checkpoint of its step into the folder dir, which all ranks must see; see [checkpoint.Save]. Each
// rank of the first pipeline writes what it is the first to have, so what is saved does not depend on the layout: any engine that
// keeps the state of a train.Recipe loads it. It is a collective call: where one rank cannot write, all get an error, there is no new
// checkpoint, and they can go on.
func (r *Rank) Save(ctx context.Context, dir string, meta any, keep int) error {
	if r.lost != nil {
		return r.lost
	}
	return r.stored().Save(ctx, dir, meta, keep)
}

// saved lists what the rank writes.
func (r *Rank) saved() (parts []checkpoint.Part, err error) {
	if r.world.Rank() != r.at {
		return nil, nil
	}
	for i, e := range r.entries {
		if r.Firsts[e.whole.Name] != r.at {
			continue
		}
		value, err := r.join(e, r.state[i])
		if err == nil {
			err = train.CheckFinite(e.whole.Name, value, r.steps)
		}
		if err != nil {
			return nil, err
		}
		parts = append(parts, checkpoint.Part{Spec: e.whole, Value: value})
	}
	return parts, nil
}

// Load puts a checkpoint's state, of whatever layout and engine, in the place of the ranks': the next step is what it would have been
// in the run that was saved. It is a collective call, and each rank reads what is its own. A checkpoint that a rank cannot read, or of
// another recipe, is an error on all, which then stand where they stood.
func (r *Rank) Load(ctx context.Context, c *checkpoint.Checkpoint) error {
	if r.lost != nil {
		return r.lost
	}
	return r.stored().Load(ctx, c)
}

// stored is the rank as checkpoints have it.
func (r *Rank) stored() rank.Stored {
	recipe, own := r.recipe, r.Recipe
	return rank.Stored{Group: r.world, Tree: recipe.State(), Steps: &r.steps, Parts: r.saved, Lose: r.lose,
		Read: func(ctx context.Context, c *checkpoint.Checkpoint) ([]*tensors.Tensor, error) {
			if err := recipe.Keeps(c); err != nil {
				return nil, err
			}
			return c.Read(ctx, own.State())
		},
		Take: func(_ context.Context, state []*tensors.Tensor) error { return r.replace(state) }}
}
