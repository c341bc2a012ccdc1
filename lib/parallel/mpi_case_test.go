//go:build mpi

package parallel_test

import (
	"context"
	"os"

	"github.com/shardbook/shardbook/internal/mpitest"
	"github.com/shardbook/shardbook/lib/collective/mpi"
	"github.com/shardbook/shardbook/lib/xla"
)

// init makes a process that mpirun started a rank, which trains and saves.
func init() {
	if os.Getenv(envDir) != "" {
		mpitest.Rank(asProcess)
	}
}

// asProcess opens as many devices as a rank has at most: those that a test process is given are one.
func asProcess(ctx context.Context, job *mpi.Job, _ *xla.Backend) error {
	backend, err := xla.Open(xla.Devices(2), xla.Plugin("cpu"))
	if err != nil {
		return err
	}
	defer backend.Close()
	return trainAndSave(ctx, job, backend, 0, os.Getenv(envDir))
}
