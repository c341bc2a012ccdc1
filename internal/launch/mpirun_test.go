package launch

import (
	"bytes"
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/systest"
)

// Under mpirun itself, ranks that fail once with the status of a failed rank are started again, and end well.
func TestMPIRun(t *testing.T) {
	systest.OpenMPI(t)
	defer systest.NoLeaks(t)()
	t.Setenv("OMPI_ALLOW_RUN_AS_ROOT", "1")
	t.Setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
	file := filepath.Join(t.TempDir(), "began")
	rank := script(t, "rank", `[ -e $1.$OMPI_COMM_WORLD_RANK ] && {
echo rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE
exit 0; }
>$1.$OMPI_COMM_WORLD_RANK
until [ -e $1.0 ] && [ -e $1.1 ]; do sleep 0.01; done
exit 75
`)
	var out, noise bytes.Buffer
	var said []string
	err := Supervise(t.Context(), Config{
		Hosts: func(context.Context) ([]Host, error) { return ParseHosts("localhost:3") },
		Probe: func(ctx context.Context, hosts []Host) ([]Host, []Silent) {
			return Probe(ctx, hosts, ShellAgent("false"), time.Second)
		},
		Ranks:    func(int) (int, error) { return 2, nil },
		Progress: func() (Progress, error) { return Progress{}, nil },
		Start: func(hosts []Host, ranks, _ int) (Process, error) {
			return Start("mpirun", MPIRun{CPUs: 1}.Args(hosts, ranks, []string{rank, file}), &out, &noise, trouble)
		},
		Restarts: 1, Grace: time.Minute,
		Pause: func(int) time.Duration { return 0 },
		Say:   func(line string) { said = append(said, line) },
	})
	ranks := strings.Split(strings.TrimSpace(out.String()), "\n")
	slices.Sort(ranks)
	if err != nil || !slices.Equal(ranks, []string{"rank 0 of 2", "rank 1 of 2"}) {
		t.Errorf("%v, ranks %q, said %q: %s", err, ranks, said, noise.String())
	}
	if len(said) < 2 || !strings.Contains(said[1], "status 75") {
		t.Errorf("said %q, want that the first start ended with status 75", said)
	}
}
