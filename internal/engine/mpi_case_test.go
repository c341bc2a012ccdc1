//go:build mpi

package engine_test

import (
	"context"
	"os"

	"github.com/shardbook/shardbook/internal/mpitest"
	"github.com/shardbook/shardbook/lib/collective/mpi"
	"github.com/shardbook/shardbook/lib/xla"
)

// init makes a process that mpirun started a rank.
func init() {
	if dir := os.Getenv(envExchange); dir != "" {
		mpitest.Rank(func(ctx context.Context, job *mpi.Job, backend *xla.Backend) error {
			return exchangeAndSave(ctx, job, backend, 0, dir)
		})
	}
}
