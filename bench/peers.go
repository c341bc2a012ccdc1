package main

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
)

// scripts are the peers' programs.
//
//go:embed peers/*.py
var scripts embed.FS

// place is where an implementation's processes run.
type place struct {
	dir     string // temporary, with the scripts; removed after the run
	python  string // with the peers' packages
	scripts string
}

// place makes the folder that the processes need.
func (s settings) place(implementations []implementation) (p place, err error) {
	if slices.ContainsFunc(implementations, func(im implementation) bool { return im.role == peer }) {
		if p.python, err = peersPython(s.python); err != nil {
			return p, err
		}
	}
	if p.dir, err = os.MkdirTemp("", "bench-"); err != nil {
		return p, err
	}
	p.scripts = filepath.Join(p.dir, "peers")
	files, err := fs.Sub(scripts, "peers")
	if err == nil {
		err = os.CopyFS(p.scripts, files)
	}
	return p, err
}

// command runs a peer's script on the CPU.
func (p place) command(ctx context.Context, env []string, script string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p.python, append([]string{filepath.Join(p.scripts, script)}, args...)...)
	cmd.Env = slices.Concat(os.Environ(), []string{"JAX_PLATFORMS=cpu", "CUDA_VISIBLE_DEVICES="}, env)
	return cmd
}

// python starts one process of a script.
func python(env []string, script string, args ...string) commands {
	return func(ctx context.Context, p place) ([]*exec.Cmd, error) {
		return []*exec.Cmd{p.command(ctx, env, script, args...)}, nil
	}
}

// torchProcesses starts n processes that share the cores, and find each other by a file.
func torchProcesses(n int, script string, args ...string) commands {
	return func(ctx context.Context, p place) (all []*exec.Cmd, err error) {
		store, err := os.MkdirTemp(p.dir, "torch-")
		for rank := range n {
			all = append(
				all,
				p.command(ctx, []string{"GLOO_SOCKET_IFNAME=" + loopback()}, script, slices.Concat(args, []string{
					"--threads=" + strconv.Itoa(max(1, runtime.NumCPU()/n)), "--rank=" + strconv.Itoa(rank),
					"--ranks=" + strconv.Itoa(n), "--store=" + filepath.Join(store, "store")})...),
			)
		}
		return all, err
	}
}

// mpiSelf builds this program with the tag mpi, and has mpirun start it with the arguments
// on every rank. The ranks communicate by the Open MPI component btl.
func mpiSelf(ranks int, btl string, env []string, args ...string) commands {
	return func(ctx context.Context, p place) ([]*exec.Cmd, error) {
		if _, err := exec.LookPath("mpicc"); err != nil {
			return nil, errUnsupported("no mpicc on the PATH. " + needMPI)
		}
		program := filepath.Join(p.dir, "bench-mpi")
		build := exec.CommandContext(ctx, "go", "build", "-tags=mpi", "-o="+program,
			"github.com/shardbook/shardbook/bench")
		if said, err := build.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("go build -tags=mpi: %w: %s", err, said)
		}
		return mpirun(ctx, ranks, btl, env, append([]string{program}, args...)...)
	}
}

// mpirun runs a program on every rank. Ranks that wait yield their core, since there may be fewer cores than ranks.
func mpirun(ctx context.Context, ranks int, btl string, env []string, program ...string) ([]*exec.Cmd, error) {
	path, err := exec.LookPath("mpirun")
	if err != nil {
		return nil, errUnsupported("no mpirun on the PATH. " + needMPI)
	}
	cmd := exec.CommandContext(ctx, path, slices.Concat([]string{"--allow-run-as-root", "--oversubscribe", "--bind-to",
		"none", "--mca", "btl", btl, "--mca", "mpi_yield_when_idle", "1", "-n", strconv.Itoa(ranks)}, program)...)
	cmd.Env = append(os.Environ(), env...)
	return []*exec.Cmd{cmd}, nil
}

// loopback is the name of the network interface to the machine itself.
func loopback() string {
	interfaces, _ := net.Interfaces()
	for _, i := range interfaces {
		if i.Flags&net.FlagLoopback != 0 {
			return i.Name
		}
	}
	return "lo"
}
