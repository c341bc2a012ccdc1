package train

import (
	"context"
	"errors"
	"fmt"

	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/compute/dtypes/float16"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/checkpoint"
)

// Save writes the run's state as the checkpoint of its step into the folder dir: see [Recipe.Save].
func (r *Run) Save(ctx context.Context, dir string, meta any, keep int) (string, error) {
	values := make([]*tensors.Tensor, len(r.state))
	for i, v := range r.state {
		if values[i] = v.Shards()[0]; v.ShardShape().Equal(v.Shape()) {
			continue
		}
		var err error
		if values[i], err = v.Merge(); err != nil {
			return "", err
		}
		if values[i], err = r.layout.join(i, values[i]); err != nil {
			return "", err
		}
	}
	return r.recipe.Save(ctx, dir, values, meta, keep)
}

// Save writes a state, as [Recipe.State] lists it, with the caller's metadata as the checkpoint of its step in the
// folder dir, and deletes all but the newest keep checkpoints; see [checkpoint.Save]. It returns the checkpoint's
// folder. A state with NaNs or infinities is an error, since saving it might delete a good checkpoint.
func (r Recipe) Save(ctx context.Context, dir string, state []*tensors.Tensor, meta any, keep int) (string, error) {
	tree := r.State()
	step := int(tensors.ToScalar[int32](state[tree.Index(stepsName)]))
	for i, v := range state {
		if err := CheckFinite(tree[i].Name, v, step); err != nil {
			return "", err
		}
	}
	return checkpoint.Save(ctx, dir, step, meta, tree, state, keep)
}

// Keeps returns an error if a checkpoint is nil or has an entry that [Recipe.State] does not list.
func (r Recipe) Keeps(c *checkpoint.Checkpoint) error {
	if c == nil {
		return errors.New("train: the checkpoint is nil: open one")
	}
	tree := r.State()
	for _, s := range c.Tree() {
		if tree.Index(s.Name) < 0 {
			return fmt.Errorf("train: %s has %q, which this run does not have: "+
				"use the model and the optimizer that the checkpoint was saved with", c.Path, s.Name)
		}
	}
	return nil
}

// CheckFinite returns an error if an entry of the state, or a shard of it, has NaNs or infinities after a step: the run
// has diverged and should not be saved.
func CheckFinite(name string, value *tensors.Tensor, step int) error {
	finite, err := allFinite(value)
	if err == nil && !finite {
		err = fmt.Errorf("train: %s has NaNs or infinities after step %d: the run has diverged and is not saved; "+
			"continue from an earlier checkpoint", name, step)
	}
	return err
}

// Load replaces the run's state by a checkpoint's. The next step is bit for bit the one that the saved run would have
// made. Settings that are not part of the state, such as the learning rate, come from the recipe: use the same recipe
// to continue as before. It returns the errors of [Recipe.Read], which leave the run unchanged.
func (r *Run) Load(ctx context.Context, c *checkpoint.Checkpoint) error {
	values, err := r.recipe.Read(ctx, c)
	if err != nil {
		return err
	}
	if err := r.place(values); err != nil {
		return err
	}
	r.steps = c.Step
	return nil
}

// Read returns the state in a checkpoint, as [Recipe.State] lists it. A damaged checkpoint is an error, and so is one
// with other parameters or optimizer states.
func (r Recipe) Read(ctx context.Context, c *checkpoint.Checkpoint) ([]*tensors.Tensor, error) {
	if err := r.Keeps(c); err != nil {
		return nil, err
	}
	tree := r.State()
	values, err := c.Read(ctx, tree)
	if err != nil {
		return nil, err
	}
	at := tree.Index(stepsName)
	if steps := tensors.ToScalar[int32](values[at]); int(steps) != c.Step {
		return nil, fmt.Errorf("train: %s is of step %d but its state of step %d: it was not saved by lib/train, use "+
			"another one", c.Path, c.Step, steps)
	}
	return values, nil
}

// allFinite reports whether a tensor has neither infinities nor NaNs.
func allFinite(t *tensors.Tensor) (finite bool, err error) {
	finite = true
	err = t.ConstFlatData(func(flat any) {
		switch values := flat.(type) {
		case []float32:
			for _, v := range values {
				finite = finite && v-v == 0
			}
		case []bfloat16.BFloat16:
			for _, v := range values {
				finite = finite && v.Float32()-v.Float32() == 0
			}
		case []float16.Float16:
			for _, v := range values {
				finite = finite && v.Float32()-v.Float32() == 0
			}
		}
	})
	return finite, err
}
