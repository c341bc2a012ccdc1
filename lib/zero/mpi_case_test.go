//go:build mpi

package zero_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

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

// asProcess is a rank's part: it stops at a checkpoint, and resumes from it.
func asProcess(ctx context.Context, job *mpi.Job, backend *xla.Backend) error {
	for i, o := range toyForms {
		for _, end := range []int{3, theEnd} {
			one, err := zero.Join(ctx, job, backend, 0, toyRecipe, o)
			if err != nil {
				return err
			}
			err = trainOn(ctx, job, one, filepath.Join(os.Getenv(envDir), fmt.Sprint(i)), end, never)
			if err := errors.Join(err, one.Close()); err != nil {
				return err
			}
		}
	}
	return nil
}
