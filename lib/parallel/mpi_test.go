package parallel_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/systest"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// envDir is set in processes that are ranks: the folder for their checkpoints, one for each layout. They run this test
// program, built with the tag mpi.
const envDir = "SHARDBOOK_PARALLEL_DIR"

// processLayouts are the layouts of each job, by its number of processes. The first and the last block share a
// parameter.
var processLayouts = map[int][]parallel.Layout{
	2: {{Pipe: 2, Data: 2, ZeRO: 1}},
	3: {{Replicas: 3, Sync: ddp.Bucketed, BucketBytes: 160}, {Replicas: 3, Every: 2}, {Replicas: 3, ZeRO: 1},
		{Replicas: 3, ZeRO: 2, Microbatches: 2}, {Replicas: 3, ZeRO: 3, Prefetch: 1},
		{Replicas: 3, Hook: ddp.PowerSGD(1)}},
	4: {{Pipe: 4}, {Pipe: 4, Schedule: pipeline.KindZBV}, {Pipe: 4, Schedule: pipeline.KindDualPipe, Microbatches: 8},
		{Replicas: 2, Pipe: 2, Schedule: pipeline.KindZBH1}},
}

// trainAndSave is a rank's part: with ZeRO it stops at a checkpoint and resumes from it. Its devices are the backend's
// from number first on.
func trainAndSave(ctx context.Context, g group.Group, backend *xla.Backend, first int, root string) error {
	r := train.Recipe{Model: toy.Layers(2*g.Size(), true), Optimizer: optim.AdamW(0.1)}
	if g.Size() == 2 { // MPI adds the norms of more ranks up in an order of its own
		r.Clip = 0.5
	}
	for i, l := range processLayouts[g.Size()] {
		p, err := parallel.NewPlan(r, l)
		if err != nil {
			return err
		}
		dir := filepath.Join(root, fmt.Sprint(i))
		err = trainOn(ctx, g, p, backend, first, dir, 2)
		if err == nil && l.ZeRO > 0 {
			err = trainOn(ctx, g, p, backend, first, dir, 3)
		}
		if err != nil {
			return fmt.Errorf("%+v: %w", l, err)
		}
	}
	return nil
}

// trainOn trains from the checkpoint in a folder, if there is one, and saves.
func trainOn(ctx context.Context, g group.Group, p *parallel.Plan, backend *xla.Backend, first int, dir string,
	end int) (err error) {
	run, err := p.Join(ctx, g, backend, first, parallel.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, run.Close()) }()
	if path, err := checkpoint.Latest(dir); err == nil {
		c, err := checkpoint.Open(path)
		if err := errors.Join(err, run.Load(ctx, c)); err != nil {
			return err
		}
	}
	for run.Steps() < end {
		inputs, targets := toy.Batch(run.Steps(), 24)
		if _, err := run.Step(ctx, inputs, targets); err != nil {
			return err
		}
	}
	return run.Save(ctx, dir, nil, 1)
}

// TestProcesses trains by processes under mpirun and by goroutines: the same bits. (Open MPI 4.1.4 adds up three ranks'
// gradients in their order; those that four ranks share, in another.) With ZeRO each process writes a file. A machine
// without Open MPI and without the means to get it skips the test; CI and root never do.
func TestProcesses(t *testing.T) {
	program := systest.BuildRanks(t, t.TempDir())
	for ranks, layouts := range processLayouts {
		theirs, own := t.TempDir(), t.TempDir()
		command := []string{"mpirun", "-n", fmt.Sprint(ranks), "--oversubscribe", program}
		if output, _, err := systest.Ranks(t, envDir+"="+theirs, command...); err != nil {
			t.Fatalf("mpirun: %v: %s", err, output)
		}
		if err := group.Run(t.Context(), ranks, func(ctx context.Context, g group.Group) error {
			return trainAndSave(ctx, g, devices(), g.Rank()*layouts[0].PerRank(), own)
		}, group.Timeout(5*time.Minute)); err != nil {
			t.Fatal(err)
		}
		for i, l := range layouts {
			name, dir := fmt.Sprintf("%+v", l), fmt.Sprint(i)
			got, want := filepath.Join(theirs, dir), filepath.Join(own, dir)
			if l.Replicas > 1 && l.Pipe > 1 {
				near(t, name, traintest.State(t, got), traintest.State(t, want), unitBound)
			} else {
				sameState(t, name, got, want)
			}
			files, err := filepath.Glob(filepath.Join(traintest.Last(t, got).Path, "*.safetensors"))
			if err != nil || l.ZeRO > 0 && len(files) != ranks {
				t.Errorf("%s: files %v, %v; want one of each process", name, files, err)
			}
		}
	}
}
