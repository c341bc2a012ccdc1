package zero

import (
	"context"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/train"
)

// saved lists what a rank writes of a state: its shards and, if it is the first, what all ranks have whole. kept gives the
// contents of its shard of a unit, and rest are the entries behind the parameters. Values that are not finite are an error.
func (l *layout) saved(all []entry, rank, step int, kept func(unit int) ([]byte, error), rest []*tensors.Tensor) (parts []checkpoint.Part, err error) {
	for i, u := range l.units {
		data, err := kept(i)
		if err != nil {
			return nil, err
		}
		own, err := l.unitParts(u, data, rank)
		if err != nil {
			return nil, err
		}
		parts = append(parts, own...)
	}
	for i, e := range all[len(l.tree):] {
		if e.sharded {
			parts = append(parts, checkpoint.Part{Spec: e.whole, From: rank * e.part.Size(), Value: rest[i]})
		} else if rank == 0 {
			parts = append(parts, checkpoint.Part{Spec: e.whole, Value: rest[i]})
		}
	}
	for _, p := range parts {
		if err := train.CheckFinite(p.Spec.Name, p.Value, step); err != nil {
			return nil, err
		}
	}
	return parts, nil
}

// Save implements [Trainer]. There is a file for each shard.
func (r *Run) Save(ctx context.Context, dir string, meta any, keep int) error {
	if r.lost != nil {
		return r.lost
	}
	draft, err := checkpoint.Begin(dir, r.steps)
	if err != nil {
		return err
	}
	defer draft.Discard()
	var written []checkpoint.Written
	for rank := range r.shards {
		var rest []*tensors.Tensor
		for _, v := range r.held.rest {
			rest = append(rest, v.Shards()[rank])
		}
		parts, err := r.saved(r.entries, rank, r.steps, func(unit int) ([]byte, error) { return r.kept(unit, rank) }, rest)
		if err != nil {
			return err
		}
		w, err := checkpoint.WriteParts(ctx, draft.Path(), rank, r.steps, parts)
		if err != nil {
			return err
		}
		written = append(written, w)
	}
	_, err = draft.Commit(ctx, meta, r.recipe.State(), written, keep)
	return err
}

// Load implements [Trainer].
func (r *Run) Load(ctx context.Context, c *checkpoint.Checkpoint) error {
	if r.lost != nil {
		return r.lost
	}
	if err := r.recipe.Keeps(c); err != nil {
		return err
	}
	var want []checkpoint.Range
	for rank := range r.shards {
		want = append(want, ranges(r.entries, rank)...)
	}
	read, err := c.ReadRanges(ctx, want)
	if err != nil {
		return err
	}
	next := 0
	if err := r.place(func(checkpoint.Range, int) (*tensors.Tensor, error) { next++; return read[next-1], nil }); err != nil {
		return err
	}
	r.steps = c.Step
	return nil
}

// Save implements [Trainer]. Each rank of the first copy of the state writes a file.
func (r *Rank) Save(ctx context.Context, dir string, meta any, keep int) error {
	if r.lost != nil {
		return r.lost
	}
	return r.stored().Save(ctx, dir, meta, keep)
}

// Load implements [Trainer]. Each rank reads its own shards, out of a checkpoint that each must see.
func (r *Rank) Load(ctx context.Context, c *checkpoint.Checkpoint) error {
	if r.lost != nil {
		return r.lost
	}
	return r.stored().Load(ctx, c)
}

// stored is the rank as checkpoints have it.
func (r *Rank) stored() rank.Stored {
	recipe := r.engine.recipe
	return rank.Stored{Group: r.world, Tree: recipe.State(), Steps: &r.steps, Lose: r.lose, Take: r.place,
		Parts: func() ([]checkpoint.Part, error) {
			if r.world.Rank() >= r.shards {
				return nil, nil
			}
			return r.saved(r.entries, r.shard.Rank(), r.steps, r.kept, r.held.rest)
		},
		Read: func(ctx context.Context, c *checkpoint.Checkpoint) ([]*tensors.Tensor, error) {
			if err := recipe.Keeps(c); err != nil {
				return nil, err
			}
			return c.ReadRanges(ctx, ranges(r.entries, r.shard.Rank()))
		}}
}
