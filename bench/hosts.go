package main

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"strconv"

	"github.com/spf13/pflag"
)

// newHosts measures what data parallelism between processes costs, as it is done between hosts. Each of two processes
// has half of each batch, and the same number of threads. They are compared with one process of the same system that
// has the batch and the threads of one of the two. Where each process has cores of its own, a cost of 1 means no
// overhead.
func newHosts() *benchmark {
	b := training{rows: ddpProcesses}
	var small bool
	return &benchmark{name: "hosts", about: fmt.Sprintf(
		"a training step of the reference GPT in %d processes, over that of one process with half of the batch",
		ddpProcesses),
		flags: func(flags *pflag.FlagSet) {
			b.flags(flags)
			flags.BoolVar(&small, "small", false, "the small model only, which takes seconds")
		},
		cases: func() ([]testCase, error) {
			cases, err := b.cases()
			if err == nil && small {
				cases = cases[:1]
			}
			for i := range cases {
				cases[i].describe = nil // one process has half of the tokens
			}
			return cases, err
		},
		implementations: hostsImplementations}
}

func hostsImplementations() []implementation {
	// XLA has as many threads as each of PyTorch's processes.
	env := []string{"NPROC=" + strconv.Itoa(max(1, runtime.NumCPU()/ddpProcesses))}
	processes := func(name, btl string) commands { return mpiSelf(ddpProcesses, btl, env, "hosts", "--worker="+name) }
	return []implementation{
		{name: "xla", about: "this project in one process, one program", role: base, env: env,
			serve: serveTrial(1, gptTrial(startOne, true))},
		{name: "mpi-2", about: "lib/ddp over lib/collective/mpi, 2 processes, by shared memory", role: ours,
			over: "xla", processes: ddpProcesses, commands: processes("mpi-2", "self,vader"), serve: serveProcess},
		{name: "mpi-tcp-2", about: "the same by TCP, as between hosts", role: variant, over: "xla",
			processes: ddpProcesses, commands: processes("mpi-tcp-2", "self,tcp"), serve: serveProcess},
		{name: "rank", about: "one process's rank of lib/ddp, which communicates with nobody", role: variant,
			over: "xla", env: env, serve: serveTrial(1, gptTrial(startRanks, true))},
		{name: "torch", about: "eager, in one process", role: base,
			commands: func(ctx context.Context, p place) ([]*exec.Cmd, error) {
				all, err := torchProcesses(ddpProcesses, "hosts.py")(ctx, p) // the first has the threads of one of two
				return all[:1], err
			}},
		{name: "ddp-2", about: "DistributedDataParallel by gloo, 2 processes", role: peer, over: "torch",
			commands: trainDDP()},
	}
}
