package zero_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/systest"
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
	if err := findOpenMPI(); err != nil {
		const how = "no Open MPI (%v): apt-get install openmpi-bin libopenmpi-dev"
		if os.Getenv("CI") != "" || os.Geteuid() == 0 {
			t.Fatalf(how, err)
		}
		t.Skipf(how, err)
	}
	program, root := filepath.Join(t.TempDir(), "ranks"), t.TempDir()
	if output, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-tags", "mpi", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	if output, err := mpirun(t, three, program, root); err != nil {
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
		files, err := filepath.Glob(filepath.Join(last(t, processDir(root, form)).Path, "*.safetensors"))
		if err != nil || len(files) != three {
			t.Errorf("stage %d: files %v, %v; want one of each process", o.Stage, files, err)
		}
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
func mpirun(t *testing.T, n int, program, root string) (output string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "mpirun", "-n", fmt.Sprint(n), "--oversubscribe", program)
	cmd.Env = append(os.Environ(), envDir+"="+root, "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
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
