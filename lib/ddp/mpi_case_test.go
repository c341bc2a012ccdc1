//go:build mpi

package ddp_test

import (
	"context"
	"fmt"
	"os"

	"github.com/shardbook/shardbook/internal/mpitest"
	"github.com/shardbook/shardbook/lib/collective/mpi"
	"github.com/shardbook/shardbook/lib/xla"
)

// init makes a process that mpirun started a rank.
func init() {
	if os.Getenv(envRank) != "" {
		mpitest.Rank(func(ctx context.Context, job *mpi.Job, backend *xla.Backend) error {
			text, err := lines(ctx, job, backend, 0)
			fmt.Print(text)
			return err
		})
	}
}
