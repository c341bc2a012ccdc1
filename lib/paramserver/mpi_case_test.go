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

// init makes a process that mpirun started a rank, which trains and prints its results.
func init() {
	if os.Getenv(envRank) != "" {
		mpitest.Rank(asProcess)
	}
}

func asProcess(ctx context.Context, job *mpi.Job, backend *xla.Backend) error {
	e, err := paramserver.NewPrograms(backend, toyRecipe, toyForms[processForm])
	if err != nil {
		return err
	}
	rank, err := e.Join(ctx, job, 0)
	if err != nil {
		return err
	}
	end, err := steady(ctx, job, rank, processSteps, toyRows(processForm, job.Size()))
	if err == nil {
		fmt.Printf("rank %d: %s\n", job.Rank(), digest(end))
	}
	return err
}
