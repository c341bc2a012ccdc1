package zero_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/shardbook/shardbook/internal/systest"
	"github.com/shardbook/shardbook/internal/traintest"
)

// envDir is set in processes that are ranks: the folder for their checkpoints, one for each form. They run this test
// program, built with the tag mpi.
const envDir = "SHARDBOOK_ZERO_DIR"

// processForms are what processes train in.
var processForms = []int{0, 2} // stages 1 and 3

func processDir(root string, form int) string {
	return filepath.Join(root, fmt.Sprint("stage", toyForms[form].Stage))
}

// TestProcesses trains by processes under mpirun and by goroutines. The processes leave off at a checkpoint, of which each
// has written a file, and new ranks go on from it. Three ranks' sums come out the same, bit for bit: Open MPI 4.1.4 adds three of
// them in the ranks' order. A machine without Open MPI and without the means to get it skips the test; CI and root never do.
func TestProcesses(t *testing.T) {
	program, root := systest.BuildRanks(t, t.TempDir()), t.TempDir()
	if output, _, err := systest.Ranks(t, envDir+"="+root, "mpirun", "-n", fmt.Sprint(three), "--oversubscribe", program); err != nil {
		t.Fatalf("mpirun: %v: %s", err, output)
	}
	for _, form := range processForms {
		dir, o := t.TempDir(), toyForms[form]
		if err := goOn(toyEngine(t, o), dir, never); err != nil {
			t.Fatal(err)
		}
		if name := differIn(stateIn(t, processDir(root, form)), stateIn(t, dir)); name != "" {
			t.Errorf("stage %d: %s of processes is not that of goroutines", o.Stage, name)
		}
		files, err := filepath.Glob(filepath.Join(traintest.Last(t, processDir(root, form)).Path, "*.safetensors"))
		if err != nil || len(files) != three {
			t.Errorf("stage %d: files %v, %v; want one of each process", o.Stage, files, err)
		}
	}
}
