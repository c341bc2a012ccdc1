package train

import (
	"context"
	"fmt"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/checkpoint"
)

// Save writes the run's state as the checkpoint of its step into the folder dir, with the caller's metadata, and keeps
// the newest keep of them; see [checkpoint.Save]. It returns the checkpoint's folder.
func (r *Run) Save(ctx context.Context, dir string, meta any, keep int) (string, error) {
	values := make([]*tensors.Tensor, len(r.state))
	for i, v := range r.state {
		values[i] = v.Shards()[0]
	}
	return checkpoint.Save(ctx, dir, r.steps, meta, r.tree, values, keep)
}

// Load puts a checkpoint's state in the place of the run's: the next step is what it would have been in the run that
// was saved, bit for bit. A checkpoint of other parameters or other optimizer states is an error, as is one that is
// damaged; the run then stands where it stood. Settings that are not part of the state, such as the learning rate, are
// the recipe's: to go on as before is to give the same recipe.
func (r *Run) Load(ctx context.Context, c *checkpoint.Checkpoint) error {
	for _, s := range c.Tree() {
		if r.tree.Index(s.Name) < 0 {
			return fmt.Errorf("train: %s has %q, which the run does not keep: give the model and the optimizer that it was saved with",
				c.Path, s.Name)
		}
	}
	values, err := c.Read(ctx, r.tree)
	if err != nil {
		return err
	}
	at := r.tree.Index(stepsName)
	if steps := tensors.ToScalar[int32](values[at]); int(steps) != c.Step {
		return fmt.Errorf("train: %s is of step %d and its state of step %d: it was not saved by a run", c.Path, c.Step, steps)
	}
	if err := r.place(values); err != nil {
		return err
	}
	r.steps = c.Step
	return nil
}
