//go:build mpi

package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/shardbook/shardbook/internal/mpitest"
	"github.com/shardbook/shardbook/lib/collective/mpi"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/xla"
)

// init makes a process that mpirun started a rank, which trains in some forms and saves.
func init() {
	if os.Getenv(envDir) != "" {
		mpitest.Rank(asProcess)
	}
}

func asProcess(ctx context.Context, job *mpi.Job, backend *xla.Backend) error {
	e, err := pipeline.NewEngine(backend, tiedRecipe())
	if err != nil {
		return err
	}
	defer e.Close()
	all, err := processForms()
	if err != nil {
		return err
	}
	for form, o := range all {
		p, err := e.Pipeline(o)
		if err != nil {
			return err
		}
		r, err := p.Join(ctx, job, 0)
		if err != nil {
			return err
		}
		if err := errors.Join(trainAndSave(ctx, r, os.Getenv(envDir), form), r.Close()); err != nil {
			return fmt.Errorf("%s: %w", o.Schedule.Name, err)
		}
	}
	return nil
}
