// Package systest has what tests need of the system: its packages, mpirun, and goroutines that have ended.
package systest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Install installs packages of Debian or Ubuntu. It returns an error that says how
// where only root may, or where apt-get cannot.
func Install(packages ...string) error {
	line := "apt-get install -y --no-install-recommends " + strings.Join(packages, " ")
	if os.Geteuid() != 0 {
		return fmt.Errorf("only root may install it: %s", line)
	}
	install := exec.Command("sh", "-c", "apt-get update && "+line)
	install.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if output, err := install.CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get cannot install it (%v): %s", err, output[max(0, len(output)-500):])
	}
	return nil
}

// OpenMPI finds Open MPI, or installs it. A machine without the means to get it skips the test; CI and root never do.
func OpenMPI(t *testing.T) {
	t.Helper()
	if err := openMPI(); err != nil {
		err = fmt.Errorf("no Open MPI (%w): apt-get install openmpi-bin libopenmpi-dev pkg-config", err)
		if os.Geteuid() == 0 {
			t.Fatal(err)
		}
		Skip(t, System, err)
	}
}

var openMPI = sync.OnceValue(func() error {
	find := func() error {
		_, err := exec.LookPath("mpirun")
		_, err2 := exec.LookPath("mpicc")
		return errors.Join(err, err2)
	}
	if find() == nil {
		return nil
	}
	if err := Install("openmpi-bin", "libopenmpi-dev", "pkg-config"); err != nil {
		return err
	}
	return find()
})

// BuildRanks builds the test program of the package in the working directory with the tag mpi into a folder, for
// [Ranks] to run.
func BuildRanks(t *testing.T, folder string) (path string) {
	t.Helper()
	OpenMPI(t)
	path = filepath.Join(folder, "ranks")
	if output, err := exec.Command("go", "test", "-c", "-tags", "mpi", "-o", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	return path
}

// Ranks runs a command that starts ranks, such as mpirun, with a setting in the environment that tells them what they
// are. It has a process group of its own and four minutes; then it is told to end, and ten seconds later killed. The
// state is nil if it could not be started.
func Ranks(t *testing.T, setting string, command ...string) (output string, state *os.ProcessState, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = append(os.Environ(), setting, "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
		"OMPI_MCA_mpi_yield_when_idle=1", "OMPI_MCA_btl=self,vader",
		"OMPI_MCA_btl_vader_single_copy_mechanism=none") // needs a right that containers do not give
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	all, err := cmd.CombinedOutput()
	if cmd.Process != nil {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	if ctx.Err() != nil {
		t.Errorf("%s did not end within four minutes", setting)
	}
	return string(all), cmd.ProcessState, err
}

// NoLeaks returns a function that fails the test unless all goroutines that were started since have ended.
func NoLeaks(t *testing.T) func() {
	t.Helper()
	before := runtime.NumGoroutine()
	return func() {
		t.Helper()
		for begun := time.Now(); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
			if time.Since(begun) > 10*time.Second {
				stacks := make([]byte, 1<<20)
				stacks = stacks[:runtime.Stack(stacks, true)]
				t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, stacks)
			}
		}
	}
}
