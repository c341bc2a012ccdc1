package train

import (
	"context"
	"fmt"

	"github.com/gomlx/gomlx/core/tensors"
)

// Snapshot returns the state by name, as [Recipe.State] lists it. Tensors that are on a device are the run's own, valid
// until its next step; shards are joined on the host. notebook.Keep calls it.
func (r *Run) Snapshot(context.Context) (map[string]*tensors.Tensor, error) {
	all := map[string]*tensors.Tensor{}
	for i, s := range r.recipe.State() {
		if on := r.state[i]; r.layout.cuts[i] == nil && on.ShardShape().Equal(on.Shape()) {
			all[s.Name] = on.Shards()[0]
			continue
		}
		full, err := r.copies(0, r.state[i:i+1])
		if err == nil {
			full[0], err = r.layout.join(i, full[0])
		}
		if err != nil {
			return nil, err
		}
		all[s.Name] = full[0]
	}
	return all, nil
}

// Restore replaces the run's state by a snapshot of a run of the same recipe, and its number of steps. The next step is
// bit for bit the one that the other run would have made. An error leaves the run unchanged.
func (r *Run) Restore(_ context.Context, steps int, snapshot map[string]*tensors.Tensor) error {
	state, err := r.recipe.Ordered(snapshot)
	if err != nil {
		return err
	}
	if err := r.place(state); err != nil {
		return err
	}
	r.steps = steps
	return nil
}

// Ordered returns a snapshot in the order of [Recipe.State], or an error if it is of another recipe.
func (r Recipe) Ordered(snapshot map[string]*tensors.Tensor) ([]*tensors.Tensor, error) {
	tree := r.State()
	if len(snapshot) != len(tree) {
		return nil, fmt.Errorf("train: the snapshot has %d entries, the recipe's state has %d: it is of another recipe",
			len(snapshot), len(tree))
	}
	var all []*tensors.Tensor
	for _, s := range tree {
		t := snapshot[s.Name]
		if t == nil || !t.Shape().Equal(s.Shape) {
			return nil, fmt.Errorf("train: the snapshot has no %q of shape %v: it is of another recipe", s.Name, s.Shape)
		}
		all = append(all, t)
	}
	return all, nil
}
