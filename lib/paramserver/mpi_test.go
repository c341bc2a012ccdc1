package paramserver_test

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/systest"
)

// envRank is set in processes that are ranks. They run this test program, built with the tag mpi.
const envRank = "SHARDBOOK_PARAMSERVER_RANK"

const processSteps = 4

const processForm = "servers"

// digest is of all bits of what a rank ends with.
func digest(r result) string {
	h := sha256.New()
	for _, s := range toyRecipe.Model.Params() {
		if err := binary.Write(h, binary.LittleEndian,
			tensors.MustCopyFlatData[float32](r.params[s.Name])); err != nil {
			panic(err)
		}
	}
	return fmt.Sprintf("%x, losses %v", h.Sum(nil)[:8], r.losses)
}

// TestProcesses trains by processes under mpirun and by goroutines. Three ranks' sums come out the same, bit for bit:
// servers add in the order of the ranks. A machine without Open MPI and without the means to get it skips the test; CI
// and root never do.
func TestProcesses(t *testing.T) {
	program := systest.BuildRanks(t, t.TempDir())
	output, _, err := systest.Ranks(t, envRank+"=1", "mpirun", "-n", fmt.Sprint(world), "--oversubscribe", program)
	if err != nil {
		t.Errorf("mpirun: %v", err)
	}
	want := together(t, toyEngine(t, processForm), world, processSteps, toyRows(processForm, world))
	for r := range world {
		if line := fmt.Sprintf("rank %d: %s\n", r, digest(want[r])); !strings.Contains(output, line) {
			t.Errorf("no process says %q", line)
		}
	}
	if t.Failed() {
		t.Log(output)
	}
}
