//go:build mpi

package paramserver_test

import (
	"context"
	"fmt"
	"os"

	"github.com/shardbook/shardbook/internal/mpitest"
	"github.com/shardbook/shardbook/lib/collective/mpi"
	"github.com/shardbook/shardbook/lib/paramserver"
	"github.com/shardbook/shardbook/lib/xla"
)

// init makes a process that mpirun started a rank, which trains in some forms and prints its results.
func init() {
	if os.Getenv(envRank) != "" {
		mpitest.Rank(asProcess)
	}
}

func asProcess(ctx context.Context, job *mpi.Job, backend *xla.Backend) error {
	for _, form := range processForms {
		e, err := paramserver.NewPrograms(backend, toyRecipe, toyForms[form])
		if err != nil {
			return err
		}
		rank, err := e.Join(ctx, job, 0)
		if err != nil {
			return err
		}
		end, err := steady(ctx, job, rank, processSteps, toyRows(form, job.Size()))
		if err != nil {
			return fmt.Errorf("%s: %w", form, err)
		}
		fmt.Printf("rank %d, %s: %s\n", job.Rank(), form, digest(end))
	}
	return nil
}
