package engine

import (
	"context"
	"errors"
	"maps"

	"github.com/gomlx/gomlx/core/tensors"
)

// Snapshot returns copies of the full state by name, as Recipe.State lists it: of a rank, that of its own stage. It is
// a collective call if ranks have shards, or states of their own between averages of local SGD.
func (r *Rank) Snapshot(ctx context.Context) (map[string]*tensors.Tensor, error) {
	if r.failed != nil {
		return nil, r.failed
	}
	if r.server != nil {
		return nil, errors.New("the servers have the optimizer's states: save a checkpoint instead")
	}
	all := map[string]*tensors.Tensor{}
	err := r.settle(ctx)
	for i, e := range r.own.entries {
		if err == nil {
			all[e.spec.Name], err = r.entry(ctx, i)
		}
	}
	return all, r.orFail(err)
}

// Restore replaces the state by a snapshot of a run of the same recipe and any layout, and the number of steps. It is a
// collective call.
func (r *Rank) Restore(ctx context.Context, steps int, snapshot map[string]*tensors.Tensor) error {
	if r.failed != nil {
		return r.failed
	}
	state, err := r.Recipe.Ordered(snapshot)
	if err != nil {
		return err
	}
	return r.resume(ctx, r.Recipe.State(), state, steps)
}

// Snapshot returns copies of the full state of all ranks, by name.
func (r *Run) Snapshot(ctx context.Context) (map[string]*tensors.Tensor, error) {
	all, err := ask(ctx, r, func(ctx context.Context, one *Rank) (map[string]*tensors.Tensor, error) {
		return one.Snapshot(ctx)
	})
	full := map[string]*tensors.Tensor{}
	for _, own := range all {
		maps.Copy(full, own)
	}
	return full, err
}

// Restore replaces the state of all ranks.
func (r *Run) Restore(ctx context.Context, steps int, snapshot map[string]*tensors.Tensor) error {
	if _, err := r.ranks[0].Recipe.Ordered(snapshot); err != nil {
		return err
	}
	return r.each(ctx, func(ctx context.Context, i int) error { return r.ranks[i].Restore(ctx, steps, snapshot) })
}
