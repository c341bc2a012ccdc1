//go:build mpi

package mpitest

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/collective/mpi"
	"github.com/shardbook/shardbook/lib/xla"
)

// Rank runs part as this process's rank, with its own device, and exits the process, after at most four minutes.
func Rank(part func(ctx context.Context, job *mpi.Job, backend *xla.Backend) error) {
	time.AfterFunc(4*time.Minute, func() { os.Exit(99) })
	devicetest.CompileQuickly()
	job, err := mpi.World(mpi.Timeout(time.Minute))
	if err != nil {
		fmt.Println(err)
		os.Exit(98)
	}
	if err := onDevice(job, part); err != nil {
		fmt.Printf("rank %d: %v\n", job.Rank(), err)
		job.Abort(97)
	}
	if err := job.Close(); err != nil {
		fmt.Printf("rank %d: close: %v\n", job.Rank(), err)
		os.Exit(96)
	}
	os.Exit(0)
}

func onDevice(job *mpi.Job, part func(ctx context.Context, job *mpi.Job, backend *xla.Backend) error) error {
	backend, err := xla.Open(xla.Devices(1), xla.Plugin("cpu"))
	if err != nil {
		return err
	}
	defer backend.Close()
	return part(context.Background(), job, backend)
}
