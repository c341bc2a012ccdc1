package zero

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/collective/group"
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

// fits returns an error if there is no checkpoint, or it has what the recipe does not keep.
func fits(r train.Recipe, c *checkpoint.Checkpoint) error {
	if c == nil {
		return errors.New("zero: the checkpoint is nil: open it, on every rank")
	}
	return r.Keeps(c)
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
	if err := fits(r.recipe, c); err != nil {
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

// Save implements [Trainer]. Rank 0 begins the checkpoint and commits it; each rank of the first copy of the state writes a
// file.
func (r *Rank) Save(ctx context.Context, dir string, meta any, keep int) error {
	if r.lost != nil {
		return r.lost
	}
	var draft *checkpoint.Shared
	var own error
	path := ""
	if r.world.Rank() == 0 {
		if draft, own = checkpoint.Begin(dir, r.steps); own == nil {
			path = draft.Path()
			defer draft.Discard()
		}
	}
	told, err := exchange(ctx, r.world, []byte(path))
	if err != nil {
		return r.lose(err)
	}
	var report []byte
	if path = string(told[0]); path != "" && r.world.Rank() < r.shards {
		var parts []checkpoint.Part
		var written checkpoint.Written
		if parts, own = r.saved(r.entries, r.shard.Rank(), r.steps, r.kept, r.held.rest); own == nil {
			written, own = checkpoint.WriteParts(ctx, path, r.world.Rank(), r.steps, parts)
		}
		if own == nil {
			report, own = json.Marshal(written)
		}
	}
	if told, err = exchange(ctx, r.world, report); err != nil {
		return r.lose(err)
	}
	done := []byte{}
	if r.world.Rank() == 0 && own == nil {
		if own = r.commit(ctx, draft, told[:r.shards], meta, keep); own == nil {
			done = []byte("done")
		}
	}
	if told, err = exchange(ctx, r.world, done); err != nil {
		return r.lose(err)
	}
	if own == nil && len(told[0]) == 0 {
		own = errors.New("zero: another rank could not write its part of the checkpoint; it says why")
	}
	return own
}

// commit ends a checkpoint, of what the ranks report.
func (r *Rank) commit(ctx context.Context, draft *checkpoint.Shared, reports [][]byte, meta any, keep int) error {
	var all []checkpoint.Written
	for rank, report := range reports {
		var w checkpoint.Written
		if len(report) == 0 {
			return fmt.Errorf("zero: rank %d could not write its part of the checkpoint; it says why", rank)
		}
		if err := json.Unmarshal(report, &w); err != nil {
			return fmt.Errorf("zero: the report of rank %d: %w", rank, err)
		}
		all = append(all, w)
	}
	_, err := draft.Commit(ctx, meta, r.engine.recipe.State(), all, keep)
	return err
}

// exchange gives all ranks each rank's message.
func exchange(ctx context.Context, g group.Group, own []byte) ([][]byte, error) {
	sizes := make([]int64, g.Size())
	if err := group.AllGather(ctx, g, []int64{int64(len(own))}, sizes); err != nil {
		return nil, err
	}
	longest := int64(1)
	for _, n := range sizes {
		longest = max(longest, n)
	}
	padded := make([]byte, longest)
	copy(padded, own)
	all := make([]byte, len(padded)*g.Size())
	if err := group.AllGather(ctx, g, padded, all); err != nil {
		return nil, err
	}
	messages := make([][]byte, g.Size())
	for i := range messages {
		messages[i] = all[i*len(padded):][:sizes[i]]
	}
	return messages, nil
}

// Load implements [Trainer]. Each rank reads its own shards, out of a checkpoint that each must see.
func (r *Rank) Load(ctx context.Context, c *checkpoint.Checkpoint) error {
	if r.lost != nil {
		return r.lost
	}
	var state []*tensors.Tensor
	own := fits(r.engine.recipe, c)
	if own == nil {
		state, own = c.ReadRanges(ctx, ranges(r.entries, r.shard.Rank()))
	}
	step := ""
	if own == nil {
		step = strconv.Itoa(c.Step)
	}
	told, err := exchange(ctx, r.world, []byte(step))
	if err != nil {
		return r.lose(err)
	}
	for rank, t := range told {
		switch {
		case own != nil:
		case len(t) == 0:
			own = fmt.Errorf("zero: rank %d could not read the checkpoint; it says why", rank)
		case string(t) != step:
			own = fmt.Errorf("zero: rank %d loads the checkpoint of step %s, this one that of step %s: give all the same", rank, t, step)
		}
	}
	if own != nil {
		return own
	}
	if err := r.place(ctx, state); err != nil {
		return r.lose(err)
	}
	r.steps = c.Step
	return nil
}
