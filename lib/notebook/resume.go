package notebook

import (
	"context"
	"fmt"

	"github.com/gomlx/gomlx/core/tensors"
)

// Trainer is a training run that a later cell can continue. The trainers of this module are such: *train.Run, and what
// the constructors of ddp, zero, pipeline, offload and parallel return.
type Trainer interface {
	Steps() int
	Snapshot(context.Context) (map[string]*tensors.Tensor, error)
	Restore(ctx context.Context, steps int, snapshot map[string]*tensors.Tensor) error
}

// snapshot is what is kept of a trainer.
type snapshot struct {
	Steps int
	State map[string]*tensors.Tensor
}

// Resume has a new trainer continue the one that [Keep] stored under name, as if it had trained itself: it gets its
// state and number of steps. The new one must have the same recipe; it may have another layout. After an error it is
// unchanged, unless the error says that it has failed.
//
//	run := notebook.Must(ddp.NewSPMD(mesh, recipe))
//	notebook.Check(notebook.Resume("run", run))
func Resume(name string, run Trainer) error {
	kept, err := Kept[snapshot](name)
	if err != nil {
		return err
	}
	if err := run.Restore(context.Background(), kept.Steps, kept.State); err != nil {
		return fmt.Errorf("notebook: resuming %q: %w", name, err)
	}
	return nil
}
