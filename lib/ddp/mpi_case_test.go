//go:build mpi

package ddp_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/collective/mpi"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/xla"
)

// init makes a process that mpirun started a rank, which trains in some forms and says what it ends with.
func init() {
	if os.Getenv(envRank) == "" {
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
		e, err := ddp.NewEngine(backend, toyRecipe, toyForms[form])
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
