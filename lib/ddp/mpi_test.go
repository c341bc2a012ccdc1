package ddp_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/systest"
)

// envRank is set in processes that are ranks. They run this test program, built with the tag mpi.
const envRank = "SHARDBOOK_DDP_RANK"

const processSteps = 4

var processForms = []string{"buckets", "servers", "local SGD"}

// digest is of all bits of what a rank ends with.
func digest(r result) string {
	h := sha256.New()
	for _, s := range toyRecipe.Model.Params() {
		if err := binary.Write(h, binary.LittleEndian, tensors.MustCopyFlatData[float32](r.params[s.Name])); err != nil {
			panic(err)
		}
	}
	return fmt.Sprintf("%x, losses %v", h.Sum(nil)[:8], r.losses)
}

// TestProcesses trains by processes under mpirun and by goroutines. Three ranks' sums come out the same, bit for bit: servers
// add in the order of the ranks, and Open MPI 4.1.4 does with three of them. A machine without Open MPI and without the means to get it skips
// the test; CI and root never do.
func TestProcesses(t *testing.T) {
	if err := findOpenMPI(); err != nil {
		const how = "no Open MPI (%v): apt-get install openmpi-bin libopenmpi-dev"
		if os.Getenv("CI") != "" || os.Geteuid() == 0 {
			t.Fatalf(how, err)
		}
		t.Skipf(how, err)
	}
	program := filepath.Join(t.TempDir(), "ranks")
	if output, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-tags", "mpi", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	output, err := mpirun(t, world, program)
	if err != nil {
		t.Errorf("mpirun: %v", err)
	}
	for _, form := range processForms {
		want := together(t, toyEngine(t, form), world, processSteps, toyRows(form, world))
		for r := range world {
			if line := fmt.Sprintf("rank %d, %s: %s\n", r, form, digest(want[r])); !strings.Contains(output, line) {
				t.Errorf("no process says %q", line)
			}
		}
	}
	if t.Failed() {
		t.Log(output)
	}
}

func findOpenMPI() error {
	find := func() error {
		_, err := exec.LookPath("mpirun")
		_, err2 := exec.LookPath("mpicc")
		return errors.Join(err, err2)
	}
	if find() == nil {
		return nil
	}
	if err := systest.Install("openmpi-bin", "libopenmpi-dev"); err != nil {
		return err
	}
	return find()
}

// mpirun runs a program on n ranks. Whatever happens, it ends.
func mpirun(t *testing.T, n int, program string) (output string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "mpirun", "-n", fmt.Sprint(n), "--oversubscribe", program)
	cmd.Env = append(os.Environ(), envRank+"=1", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
		"OMPI_MCA_mpi_yield_when_idle=1", "OMPI_MCA_btl=self,vader",
		"OMPI_MCA_btl_vader_single_copy_mechanism=none") // needs a right that containers do not give
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	all, err := cmd.CombinedOutput()
	if cmd.Process != nil {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	return string(all), err
}
