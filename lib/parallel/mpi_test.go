package parallel_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/systest"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// envDir is set in processes that are ranks: the folder for their checkpoint. They run this test program, built with
// the tag mpi.
const envDir = "SHARDBOOK_PARALLEL_DIR"

// processLayout is what two processes train in, of two devices each. The first and the last block, on either rank, have
// a parameter in common.
var processLayout = parallel.Layout{Pipe: 2, Data: 2, ZeRO: 1}

// trainAndSave is a rank's part; its devices are the backend's from number first on.
func trainAndSave(ctx context.Context, g group.Group, backend *xla.Backend, first int, dir string) error {
	p, err := parallel.NewPlan(train.Recipe{Model: toy.Model(true), Optimizer: optim.AdamW(0.1), Clip: 0.5},
		processLayout)
	if err != nil {
		return err
	}
	r, err := p.Join(ctx, g, backend, first, parallel.Options{})
	if err != nil {
		return err
	}
	for step := range 2 {
		inputs, targets := toy.Batch(step, 8)
		if _, err := r.Step(ctx, inputs, targets); err != nil {
			return errors.Join(err, r.Close())
		}
	}
	return errors.Join(r.Save(ctx, dir, nil, 0), r.Close())
}

// TestProcesses trains by processes under mpirun and by goroutines: the same bits. A machine without Open MPI and
// without the means to get it skips the test; CI and root never do.
func TestProcesses(t *testing.T) {
	program, theirs, own := systest.BuildRanks(t, t.TempDir()), t.TempDir(), t.TempDir()
	command := []string{"mpirun", "-n", fmt.Sprint(processLayout.Ranks()), "--oversubscribe", program}
	if output, _, err := systest.Ranks(t, envDir+"="+theirs, command...); err != nil {
		t.Fatalf("mpirun: %v: %s", err, output)
	}
	if err := group.Run(t.Context(), processLayout.Ranks(), func(ctx context.Context, g group.Group) error {
		return trainAndSave(ctx, g, devices(), g.Rank()*processLayout.PerRank(), own)
	}, group.Timeout(5*time.Minute)); err != nil {
		t.Fatal(err)
	}
	sameState(t, "processes", theirs, own)
}
