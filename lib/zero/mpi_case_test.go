//go:build mpi

package zero_test

import (
	"context"
	"os"

	"github.com/shardbook/shardbook/internal/mpitest"
	"github.com/shardbook/shardbook/lib/collective/mpi"
	"github.com/shardbook/shardbook/lib/xla"
)

// init makes a process that mpirun started a rank, which trains in some forms and saves.
func init() {
	if os.Getenv(envDir) != "" {
		mpitest.Rank(func(ctx context.Context, job *mpi.Job, backend *xla.Backend) error {
			return asProcess(ctx, job, backend)
		})
	}
}
