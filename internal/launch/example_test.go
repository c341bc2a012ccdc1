package launch_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/shardbook/shardbook/internal/launch"
	"github.com/shardbook/shardbook/lib/notebook"
)

// A job that loses a host at step 40, with the shell in the place of mpirun: it goes on from there on the host that is
// left.
func ExampleSupervise() {
	hosts, err := launch.ParseHostfile(strings.NewReader("node1 slots=4 # stays\nnode2 slots=4 # will be lost\n"))
	notebook.Check(err)
	lost, saved := false, 0
	err = launch.Supervise(context.Background(), launch.Config{
		Hosts: func(context.Context) ([]launch.Host, error) { return hosts, nil },
		// launch.Probe asks by ssh
		Probe: func(_ context.Context, hosts []launch.Host) ([]launch.Host, []launch.Silent) {
			if !lost {
				return hosts, nil
			}
			return hosts[:1], []launch.Silent{{Host: hosts[1], Err: errors.New("no answer")}}
		},
		Ranks:    func(slots int) (int, error) { return slots, nil },
		Progress: func() (launch.Progress, error) { return launch.Progress{Saved: saved, Reached: saved}, nil },
		Start: func(hosts []launch.Host, ranks, from int) (launch.Process, error) {
			fmt.Println(ranks, "ranks on", hosts, "from step", from)
			status := "exit 0"
			if !lost {
				// a rank has seen that another was lost
				lost, saved, status = true, 40, fmt.Sprint("exit ", launch.Again)
			}
			return launch.Start("sh", []string{"-c", status}, io.Discard, io.Discard, nil)
		},
		MinHosts: 1,
		Restarts: 3,
		Grace:    time.Minute,
		Pause:    func(int) time.Duration { return 0 },
		Say:      func(string) {},
	})
	fmt.Println("error:", err)
	// Output:
	// 8 ranks on [node1:4 node2:4] from step 0
	// 4 ranks on [node1:4] from step 40
	// error: <nil>
}
