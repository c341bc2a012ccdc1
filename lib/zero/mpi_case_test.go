//go:build mpi

package zero_test

import (
	"context"
	"fmt"
	"os"

	"github.com/shardbook/shardbook/internal/mpitest"
	"github.com/shardbook/shardbook/lib/collective/mpi"
	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/zero"
)

// init makes a process that mpirun started a rank, which trains in some forms and saves.
func init() {
	if os.Getenv(envDir) != "" {
		mpitest.Rank(asProcess)
	}
}

func asProcess(ctx context.Context, job *mpi.Job, backend *xla.Backend) error {
	for _, form := range processForms {
		e, err := zero.NewEngine(backend, toyRecipe, toyForms[form])
		if err != nil {
			return err
		}
		for _, end := range []int{3, theEnd} {
			if err := trainOn(ctx, job, e, 0, processDir(os.Getenv(envDir), form), end, never); err != nil {
				return fmt.Errorf("stage %d, to step %d: %w", toyForms[form].Stage, end, err)
			}
		}
		e.Close()
	}
	return nil
}
