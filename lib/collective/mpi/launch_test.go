package mpi_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/systest"
)

// envCase says which part a rank plays; it is set in the processes that mpirun
// starts. They run the same test program, built with the tag mpi.
const envCase = "SHARDBOOK_MPI_CASE"

// openMPI makes sure that mpirun and mpicc are there, installing Debian's where it may.
var openMPI = sync.OnceValue(func() error {
	missing := func() error {
		_, err := exec.LookPath("mpirun")
		_, err2 := exec.LookPath("mpicc")
		return errors.Join(err, err2)
	}
	err := missing()
	if err == nil {
		return nil
	}
	if err := systest.Install("openmpi-bin", "libopenmpi-dev"); err != nil {
		return err
	}
	return missing()
})

// folder is where the tests put what they all need.
var folder string

// asRank plays a rank and ends the process; it is there in programs with the tag mpi.
var asRank func(play string)

func TestMain(m *testing.M) {
	if play := os.Getenv(envCase); play != "" && asRank != nil {
		asRank(play)
	}
	var err error
	if folder, err = os.MkdirTemp("", "shardbook-mpi-"); err != nil {
		panic(err)
	}
	status := m.Run()
	os.RemoveAll(folder)
	os.Exit(status)
}

// program is the test program with the tag mpi, built once.
var program = sync.OnceValues(func() (string, error) {
	path := filepath.Join(folder, "ranks")
	if output, err := exec.Command("go", "test", "-c", "-tags", "mpi", "-o", path, ".").CombinedOutput(); err != nil {
		return "", fmt.Errorf("%v: %s", err, output)
	}
	return path, nil
})

// ready returns the program for ranks. A machine without Open MPI and without the
// means to get it skips the test; CI and root never do.
func ready(t *testing.T) string {
	t.Helper()
	if err := openMPI(); err != nil {
		const how = "no Open MPI (%v): apt-get install openmpi-bin libopenmpi-dev"
		if os.Getenv("CI") != "" || os.Geteuid() == 0 {
			t.Fatalf(how, err)
		}
		t.Skipf(how, err)
	}
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// job is what became of an mpirun.
type job struct {
	status int
	said   map[int][]string // what each rank reported, see report
	output string
}

// mpirun runs a case on n ranks. Whatever happens, it ends.
func mpirun(t *testing.T, n int, play string, flags ...string) job {
	t.Helper()
	path := ready(t)
	args := append([]string{"-n", fmt.Sprint(n), "--oversubscribe"}, flags...)
	return start(t, play, "mpirun", append(args, path)...)
}

// start runs a command that starts ranks. It has a process group of its own and
// four minutes; then it is told to end, and ten seconds later killed.
func start(t *testing.T, play string, name string, args ...string) job {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), envCase+"="+play, "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
		"OMPI_MCA_mpi_yield_when_idle=1", "OMPI_MCA_btl=self,vader",
		"OMPI_MCA_btl_vader_single_copy_mechanism=none") // needs a right that containers do not give
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	output, err := cmd.CombinedOutput()
	syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	if ctx.Err() != nil {
		t.Errorf("%s did not end within four minutes", play)
	} else if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	j := job{status: cmd.ProcessState.ExitCode(), said: map[int][]string{}, output: string(output)}
	for _, line := range reported.FindAllStringSubmatch(j.output, -1) {
		var rank int
		fmt.Sscan(line[1], &rank)
		j.said[rank] = append(j.said[rank], line[2])
	}
	return j
}

var reported = regexp.MustCompile(`(?m)^rank (\d+) reports: (.*)$`)

// wellOn runs a case that must go well, and in which every rank reports "done" last.
func wellOn(t *testing.T, n int, play string, flags ...string) job {
	t.Helper()
	j := mpirun(t, n, play, flags...)
	j.mustBeWell(t, n)
	return j
}

func (j job) mustBeWell(t *testing.T, n int) {
	t.Helper()
	if j.status != 0 {
		t.Errorf("exit status %d", j.status)
	}
	for rank := range n {
		if said := j.said[rank]; len(said) == 0 || said[len(said)-1] != "done" {
			t.Errorf("rank %d did not come to its end: %q", rank, said)
		}
	}
	if t.Failed() {
		t.Log(strings.TrimSpace(j.output))
	}
}

var within = regexp.MustCompile(`within \S+`)

// alike is whether two errors are the same but for the times they name, which on a
// busy machine are a little less than was asked for.
func alike(a, b string) bool {
	return within.ReplaceAllString(a, "within") == within.ReplaceAllString(b, "within")
}
