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

// Save writes a state, as [Recipe.State] lists it, as the checkpoint of its step into the folder dir, with the caller's
// metadata, and keeps the newest keep of them; see [checkpoint.Save]. It returns the checkpoint's folder. A state with
// numbers that are not finite is not saved, since a good checkpoint might go to make room for it: that is an error.
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

// Keeps returns an error if a checkpoint has what [Recipe.State] does not list, or is nil.
func (r Recipe) Keeps(c *checkpoint.Checkpoint) error {
	if c == nil {
		return errors.New("train: the checkpoint is nil: open one")
	}
	tree := r.State()
	for _, s := range c.Tree() {
		if tree.Index(s.Name) < 0 {
			return fmt.Errorf("train: %s has %q, which the run does not keep: "+
				"give the model and the optimizer that it was saved with", c.Path, s.Name)
		}
	}
	return nil
}

// CheckFinite returns an error if an entry of the state after a step, or a part of it, has values that are not finite:
// the run has diverged, and should not be saved.
func CheckFinite(name string, value *tensors.Tensor, step int) error {
	finite, err := allFinite(value)
	if err == nil && !finite {
		err = fmt.Errorf("train: %s has values that are not finite after step %d: "+
			"the run has diverged, and is not saved", name, step)
	}
	return err
}

// Load puts a checkpoint's state in the place of the run's: the next step is what it would have been in the run that
// was saved, bit for bit. A checkpoint that [Recipe.Read] refuses is an error; the run then stands where it stood.
// Settings that are not part of the state, such as the learning rate, are the recipe's: to go on as before is to give
// the same recipe.
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

// Read returns the state that is in a checkpoint, as [Recipe.State] lists it. A checkpoint of other parameters or other
// optimizer states is an error, as is one that is damaged.
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
		return nil, fmt.Errorf("train: %s is of step %d and its state of step %d: it was not saved by a run", c.Path,
			c.Step, steps)
	}
	return values, nil
}

// allFinite says whether a tensor has neither infinities nor NaNs.
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
