package pipeline_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/shardbook/shardbook/internal/systest"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/pipeline/schedule"
)

// envDir is set in processes that are ranks: the folder for their checkpoints, one for each schedule. They run this test program,
// built with the tag mpi.
const envDir = "SHARDBOOK_PIPELINE_DIR"

const (
	processes    = 4
	processSteps = 2
	processRows  = 8 * microRows
)

// processForms are what processes train in: one pipeline of four, with one stage each, with two, and from both ends; and two of two.
func processForms() (all []pipeline.Options, err error) {
	for _, f := range []struct {
		kind             schedule.Kind
		ranks, m, copies int
	}{{schedule.Kind1F1B, 4, 8, 1}, {schedule.KindZBV, 4, 8, 1}, {schedule.KindDualPipe, 4, 8, 1}, {schedule.KindZBH1, 2, 4, 2}} {
		s, err := schedule.New(f.kind, f.ranks, f.m, 0)
		if err != nil {
			return nil, err
		}
		all = append(all, pipeline.Options{Schedule: s, Replicas: f.copies})
	}
	return all, nil
}

// trainAndSave is a rank's part.
func trainAndSave(ctx context.Context, r *pipeline.Rank, root string, form int) error {
	if _, err := steady(ctx, r, processSteps, toyBatches(processRows)); err != nil {
		return err
	}
	return r.Save(ctx, filepath.Join(root, fmt.Sprint(form)), nil, 0)
}

// TestProcesses trains by processes under mpirun and by goroutines: the same bits, where no more than two
// ranks have a parameter in common. A machine without Open MPI and without the means to
// get it skips the test; CI and root never do.
func TestProcesses(t *testing.T) {
	program, root, own := systest.BuildRanks(t, t.TempDir()), t.TempDir(), t.TempDir()
	command := []string{"mpirun", "-n", fmt.Sprint(processes), "--oversubscribe", program}
	if output, _, err := systest.Ranks(t, envDir+"="+root, command...); err != nil {
		t.Fatalf("mpirun: %v: %s", err, output)
	}
	all, err := processForms()
	if err != nil {
		t.Fatal(err)
	}
	for form, o := range all {
		of := training{engine: tiedEngine(t), options: o}
		if err := of.joined(t.Context(), func(ctx context.Context, _ group.Group, r *pipeline.Rank) error {
			return trainAndSave(ctx, r, own, form)
		}); err != nil {
			t.Fatal(err)
		}
		folder := fmt.Sprint(form)
		got, want := stateIn(t, filepath.Join(root, folder)), stateIn(t, filepath.Join(own, folder))
		if o.Replicas > 1 { // four ranks have gradients in common, and Open MPI adds them up in an order of its own
			near(t, "processes, two pipelines", got, want)
		} else {
			same(t, "processes, "+o.Schedule.Name, got, want)
		}
	}
}
