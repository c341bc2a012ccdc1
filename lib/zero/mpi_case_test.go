//go:build mpi

package zero_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/collective/mpi"
	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/zero"
)

// init makes a process that mpirun started a rank, which trains in some forms and saves.
func init() {
	if os.Getenv(envDir) == "" {
		return
	}
	time.AfterFunc(4*time.Minute, func() { os.Exit(99) }) // whatever mpirun does
	devicetest.CompileQuickly()
	job, err := mpi.World(mpi.Timeout(time.Minute))
	if err != nil {
		fmt.Println(err)
		os.Exit(98)
	}
	if err := asProcess(context.Background(), job); err != nil {
		fmt.Printf("rank %d: %v\n", job.Rank(), err)
		job.Abort(97)
	}
	if err := job.Close(); err != nil {
		fmt.Printf("rank %d: close: %v\n", job.Rank(), err)
		os.Exit(96)
	}
	os.Exit(0)
}

func asProcess(ctx context.Context, job *mpi.Job) error {
	backend, err := xla.Open(xla.Devices(1), xla.Plugin("cpu"))
	if err != nil {
		return err
	}
	defer backend.Close()
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
