package mpi_test

import (
	"testing"

	"github.com/shardbook/shardbook/internal/hosts"
)

// onHosts runs a case with one rank on each of three hosts, over TCP.
func onHosts(t *testing.T, play string) job {
	t.Helper()
	line := hosts.New(t, 3).MPIRun(0, 1, "-x", envCase, ready(t))
	return start(t, play, line[0], line[1:]...)
}

func TestHosts(t *testing.T) { onHosts(t, "random").mustBeWell(t, 3) }

// TestHostIsCutOff has the host of rank 2 lose its network for a while.
func TestHostIsCutOff(t *testing.T) {
	j := onHosts(t, "cut off")
	for _, rank := range []int{0, 1} {
		j.mustSay(t, rank, "all-reduce #2: rank 2 did not arrive within 2s (its last call here was barrier #1)")
	}
	if j.status != 75 {
		t.Errorf("exit status %d, want the ranks' own, 75", j.status)
	}
}
