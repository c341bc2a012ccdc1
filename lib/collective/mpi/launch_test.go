package mpi_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/systest"
)

// envCase says which part a rank plays; it is set in the processes that mpirun starts. They run this test program,
// built with the tag mpi.
const envCase = "SHARDBOOK_MPI_CASE"

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

// built is the test program with the tag mpi, once it has been built.
var built string

// ready returns the program for ranks.
func ready(t *testing.T) string {
	t.Helper()
	if built == "" {
		built = systest.BuildRanks(t, folder)
	}
	return built
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

// start runs a command that starts ranks.
func start(t *testing.T, play string, name string, args ...string) job {
	t.Helper()
	output, state, err := systest.Ranks(t, envCase+"="+play, append([]string{name}, args...)...)
	if state == nil {
		t.Fatal(err)
	}
	j := job{status: state.ExitCode(), said: map[int][]string{}, output: output}
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

// alike is whether two errors are the same but for the times they name, which on a busy machine are a little less than
// was asked for.
func alike(a, b string) bool {
	return within.ReplaceAllString(a, "within") == within.ReplaceAllString(b, "within")
}
