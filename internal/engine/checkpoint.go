package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/train"
)

// Save writes the full state as the checkpoint of its step into the folder dir, which all ranks must see;
// [checkpoint.Save] explains meta and keep. Each rank writes the parts that it is the first to have, so the checkpoint
// does not depend on the layout. It is a collective call: rank 0 creates the checkpoint and commits it. If a rank
// cannot write, there is no checkpoint and all ranks get an error: that rank its own, the others one that names it;
// they can continue. An error of the group makes the rank unusable. The state of hooks is not saved. In local SGD the
// ranks' states are averaged first.
func (r *Rank) Save(ctx context.Context, dir string, meta any, keep int) error {
	if r.failed != nil {
		return r.failed
	}
	err := r.save(ctx, dir, meta, keep)
	if r.world.Rank() > 0 && errors.Is(err, train.ErrElsewhere) {
		err = fmt.Errorf("another rank could not write: %w", err)
	}
	return r.orFail(err)
}

func (r *Rank) save(ctx context.Context, dir string, meta any, keep int) error {
	if err := r.settle(ctx); err != nil {
		return err
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
	told, err := r.agree(ctx, "write the checkpoint", []byte(path), own)
	if err != nil {
		return err
	}
	report, own := r.write(ctx, string(told[0]))
	var failure *group.Failure
	if errors.As(own, &failure) {
		return own
	}
	if told, err = r.agree(ctx, "write its part of the checkpoint", report, own); err != nil {
		return err
	}
	if r.world.Rank() == 0 {
		own = r.commit(ctx, draft, meta, told, keep)
	}
	_, err = r.agree(ctx, "write the checkpoint", nil, own)
	return err
}

// agree exchanges what each rank has to say, if all ranks could do something. Own is this rank's error or nil. If some
// rank failed, all get an error: that rank its own, the others one that names it.
func (r *Rank) agree(ctx context.Context, what string, say []byte, own error) ([][]byte, error) {
	if say = append([]byte{1}, say...); own != nil {
		say = nil
	}
	told, err := group.Exchange(ctx, r.world, say)
	if err := cmp.Or(err, own); err != nil {
		return nil, err
	}
	for rank, t := range told {
		if len(t) == 0 {
			return nil, fmt.Errorf("rank %d could not %s; %w", rank, what, train.ErrElsewhere)
		}
		told[rank] = t[1:]
	}
	return told, nil
}

// settle averages the ranks' states, in local SGD between its averages.
func (r *Rank) settle(ctx context.Context) error {
	op, some := find(r.Plans[len(r.Plans)-1], averages)
	if r.steps%len(r.Plans) == 0 || !some {
		return nil
	}
	return r.averageCells(ctx, r.groups[op.Axis])
}

// write writes the rank's part, and returns a report of it, null for none.
func (r *Rank) write(ctx context.Context, path string) ([]byte, error) {
	parts, err := r.written(ctx)
	if err != nil {
		return nil, err
	}
	for _, part := range parts {
		if err := train.CheckFinite(part.Spec.Name, part.Value, r.steps); err != nil {
			return nil, err
		}
	}
	var written *checkpoint.Written
	if len(parts) > 0 {
		w, err := checkpoint.WriteParts(ctx, path, r.world.Rank(), r.steps, parts)
		if err != nil {
			return nil, err
		}
		written = &w
	}
	return json.Marshal(written)
}

// written lists what the rank writes: what it is the first to have, or what its server has.
func (r *Rank) written(ctx context.Context) (parts []checkpoint.Part, err error) {
	if r.server != nil {
		return r.server.Parts(r.steps)
	}
	all := r.own.recipe.State()
	for i, e := range r.own.entries {
		part, mine := checkpoint.Part{Spec: all[i]}, e.first == r.own.rank
		switch spread := e.flat > 0 && r.groups[e.axis] != nil; {
		case spread && e.cut == nil && e.apart == nil: // each rank has a range of it
			shards, _ := r.Plans[0].Axis(e.axis)
			if mine = slices.Contains(shards.Group(e.first), r.own.rank); mine {
				part.From = r.index(e.axis) * e.flat
				part.Value, err = r.own.held(i, r.contentNow, r.index)
			}
		case spread || mine || e.apart != nil:
			part.Value, err = r.entry(ctx, i)
		}
		if err != nil {
			return nil, err
		}
		if mine {
			parts = append(parts, part)
		}
	}
	return parts, nil
}

// commit completes a checkpoint from the ranks' reports.
func (r *Rank) commit(ctx context.Context, draft *checkpoint.Shared, meta any, reports [][]byte, keep int) error {
	var all []checkpoint.Written
	for rank, report := range reports {
		var w *checkpoint.Written
		if err := json.Unmarshal(report, &w); err != nil {
			return fmt.Errorf("the report of rank %d: %w", rank, err)
		}
		if w != nil {
			all = append(all, *w)
		}
	}
	_, err := draft.Commit(ctx, meta, r.Recipe.State(), all, keep)
	return err
}

// Load replaces the ranks' state by a checkpoint's, of whatever layout: the next step is what it would have been in the
// run that saved it. It is a collective call, and each rank reads its own part. If a rank cannot read, or the ranks
// open checkpoints of different steps or of another recipe, all get an error and are unchanged. An error of the group
// makes the rank unusable.
func (r *Rank) Load(ctx context.Context, c *checkpoint.Checkpoint) error {
	if r.failed != nil {
		return r.failed
	}
	tree := r.own.recipe.State()
	if r.server != nil {
		tree = r.Recipe.State()
	}
	state, err := r.read(ctx, c, tree)
	if err != nil {
		return r.orFail(err)
	}
	return r.resume(ctx, tree, state, c.Step)
}

// resume replaces the state and the number of steps.
func (r *Rank) resume(ctx context.Context, tree params.Tree, state []*tensors.Tensor, steps int) error {
	if err := r.begin(ctx, tree, state); err != nil {
		return r.fail(err)
	}
	if r.Hook != nil {
		r.hook = r.Hook() // the old one has errors of other steps
	}
	r.steps = steps
	return nil
}

// read reads the rank's part, if all ranks can.
func (r *Rank) read(ctx context.Context, c *checkpoint.Checkpoint, tree params.Tree) ([]*tensors.Tensor, error) {
	var state []*tensors.Tensor
	own := errors.New("the checkpoint is nil: open it, on every rank")
	at := ""
	if c != nil {
		at = strconv.Itoa(c.Step)
		if own = r.Recipe.Keeps(c); own == nil {
			state, own = c.Read(ctx, tree)
		}
	}
	told, err := r.agree(ctx, "read the checkpoint", []byte(at), own)
	for rank, t := range told {
		if string(t) != at {
			return nil, fmt.Errorf("rank %d loads the checkpoint of step %s, this rank that of step %s: "+
				"load the same on all", rank, t, at)
		}
	}
	return state, err
}
