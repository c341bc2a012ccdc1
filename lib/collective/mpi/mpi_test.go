package mpi_test

import (
	"slices"
	"testing"
)

func TestPieces(t *testing.T) { wellOn(t, 3, "pieces") }

func TestRounding(t *testing.T) { wellOn(t, 2, "rounding") }

func TestWaitingRankRests(t *testing.T) { t.Log(wellOn(t, 2, "waiting").said[0]) }

func TestAlone(t *testing.T) { start(t, "alone", ready(t)).mustBeWell(t, 1) }

func TestRankLeaves(t *testing.T) {
	j := wellOn(t, 4, "leaves")
	for _, rank := range []int{0, 1, 3} {
		j.mustSay(t, rank, "all-reduce #2: rank 2 has closed the job (its last call here was barrier #1)", "done")
	}
}

// TestExitStatus ends all ranks with status 3 after a failure, and mpirun with them.
func TestExitStatus(t *testing.T) {
	j := mpirun(t, 4, "exits")
	if j.status != 3 {
		t.Errorf("exit status %d, want the ranks' own, 3", j.status)
	}
	for rank := range 4 {
		j.mustSay(t, rank, "all-reduce #1: rank 2 called broadcast (1048576 float32 from rank 2) "+
			"where rank 0 called all-reduce (sum of 1048576 float32)", "closed: <nil>")
	}
}

// TestRankIsKilled has mpirun end the job, or let the survivors find out.
func TestRankIsKilled(t *testing.T) {
	if j := mpirun(t, 4, "killed"); j.status == 0 {
		t.Error("mpirun reports success though a rank was killed")
	}
	j := mpirun(t, 4, "killed", "--enable-recovery")
	for _, rank := range []int{0, 1, 3} {
		j.mustSay(t, rank, "all-reduce #2: rank 2 did not arrive within 1s (its last call here was barrier #1)")
	}
	j = mpirun(t, 3, "killed at work", "--enable-recovery")
	for _, rank := range []int{0, 1} {
		j.mustSay(t, rank, "all-reduce #2: rank 2 did not go on moving data within 3s "+
			"(its last call here was all-reduce #2 (product of 33554432 float32))")
	}
}

func (j job) mustSay(t *testing.T, rank int, want ...string) {
	t.Helper()
	if got := j.said[rank]; !slices.EqualFunc(got, want, alike) {
		t.Errorf("rank %d says %q, want %q", rank, got, want)
	}
}
