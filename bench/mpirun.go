package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
)

// mpiSelf builds this very program with the tag that brings Open MPI in, and has mpirun start ranks of it, which talk by
// an Open MPI "btl".
func mpiSelf(ctx context.Context, p place, ranks int, btl string, args ...string) (*exec.Cmd, error) {
	if _, err := exec.LookPath("mpicc"); err != nil {
		return nil, errUnsupported("no mpicc on the PATH. " + needMPI)
	}
	program := filepath.Join(p.dir, "bench-mpi")
	build := exec.CommandContext(ctx, "go", "build", "-tags=mpi", "-o="+program, "github.com/shardbook/shardbook/bench")
	if said, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build -tags=mpi: %w: %s", err, said)
	}
	return mpirun(ctx, ranks, btl, append([]string{program}, args...)...)
}

// mpirun runs a program on every rank. Ranks that wait yield their core, since there may be fewer cores than ranks.
func mpirun(ctx context.Context, ranks int, btl string, program ...string) (*exec.Cmd, error) {
	path, err := exec.LookPath("mpirun")
	if err != nil {
		return nil, errUnsupported("no mpirun on the PATH. " + needMPI)
	}
	return exec.CommandContext(ctx, path, slices.Concat([]string{"--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
		"--mca", "btl", btl, "--mca", "mpi_yield_when_idle", "1", "-n", strconv.Itoa(ranks)}, program)...), nil
}
