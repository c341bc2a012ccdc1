package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/shardbook/shardbook/lib/chart"
)

// hosts measures what data parallelism between processes costs, as it is done between hosts. Two processes have half of the
// rows of each batch, and the same number of threads, each; what they are compared with is one process of the same system, with
// as many rows and threads as one of the two. Where each has cores of its own, a cost of 1 is one that is paid for nothing.
type hosts struct {
	training
	small  bool
	losses [][]string // of the first steps, by case and implementation
}

func newHosts() benchmark { return &hosts{} }

func (*hosts) name() string { return "hosts" }

func (*hosts) about() string {
	return fmt.Sprintf("a training step of the reference GPT in %d processes, over one process's with as many rows and threads as each", ddpProcesses)
}

func (b *hosts) flags(cmd *cobra.Command) {
	b.training.flags(cmd)
	cmd.Flags().BoolVar(&b.small, "small", false, "the small model only, which takes seconds")
}

func (b *hosts) cases() ([]testCase, error) {
	cases, err := b.training.cases()
	if err != nil {
		return nil, err
	}
	if b.small {
		cases = cases[:1]
	}
	for i, c := range cases {
		if rows := c.params.(trainParams).Batch; rows%ddpProcesses != 0 {
			return nil, fmt.Errorf("%s: a batch of %d sequences, want a multiple of %d", c.name, rows, ddpProcesses)
		}
		cases[i].hear = func(implementation string, losses []float64) {
			row := []string{c.name, implementation}
			for _, loss := range losses {
				row = append(row, fmt.Sprintf("%.6f", loss))
			}
			b.losses = append(b.losses, row)
		}
	}
	return cases, nil
}

func (b *hosts) implementations() []implementation {
	env := hostEnv()
	return []implementation{
		{name: "xla", about: "this project in one process, one program", role: base, env: env, serve: serveAlone(startOne)},
		{name: "mpi-2", about: "lib/ddp over lib/collective/mpi, 2 processes, which share memory", role: ours, over: "xla", processes: ddpProcesses,
			commands: b.mpi("mpi-2", "self,vader"), serve: serveProcess},
		{name: "mpi-tcp-2", about: "the same by TCP, as between hosts", role: variant, over: "xla", processes: ddpProcesses,
			commands: b.mpi("mpi-tcp-2", "self,tcp"), serve: serveProcess},
		{name: "rank", about: "one process's rank of lib/ddp, which communicates with nobody", role: variant, over: "xla", env: env,
			serve: serveAlone(startRanks)},
		{name: "torch", about: "eager, in one process", role: base, commands: torchAlone},
		{name: "ddp-2", about: "DistributedDataParallel by gloo, 2 processes", role: peer, over: "torch", processes: ddpProcesses,
			commands: trainDDP()},
	}
}

// hostEnv has XLA take as many threads as each of PyTorch's processes.
func hostEnv() []string {
	return []string{"NPROC=" + strconv.Itoa(max(1, runtime.NumCPU()/ddpProcesses))}
}

// torchAlone is the first of [torchProcesses], with the threads that each of them has.
func torchAlone(ctx context.Context, p place) ([]*exec.Cmd, error) {
	commands, err := torchProcesses(ddpProcesses, "hosts.py")(ctx, p)
	return commands[:1], err
}

// mpi starts an implementation's processes, which talk by an Open MPI "btl".
func (b *hosts) mpi(name, btl string) func(context.Context, place) ([]*exec.Cmd, error) {
	return func(ctx context.Context, p place) ([]*exec.Cmd, error) {
		cmd, err := mpiSelf(ctx, p, ddpProcesses, btl, b.name(), "--worker="+name)
		if err != nil {
			return nil, err
		}
		cmd.Env = slices.Concat(os.Environ(), hostEnv())
		return []*exec.Cmd{cmd}, nil
	}
}

// charts says how the slowdowns compare, and lists them with the times.
func (b *hosts) charts(records []record) []*chart.Chart {
	charts := costCharts("a second process", "one process's", records)
	if b.losses != nil {
		header := []string{"case", ""}
		for step := range trainFirst {
			header = append(header, fmt.Sprint("step ", step+1))
		}
		charts = append(charts, chart.Table("Losses of whole batches", header, b.losses))
	}
	of := func(c, implementation string) (found record) {
		for _, r := range records {
			if r.Case == c && r.Impl == implementation {
				found = r
			}
		}
		return found
	}
	header := []string{"case", "ours", "a rank alone", "efficiency", "theirs", "efficiency", "ours / theirs", "highest", "of least times"}
	var rows [][]string
	for _, r := range records {
		if r.Role != ours || r.Best == "" {
			continue
		}
		theirs := of(r.Case, r.Best)
		rows = append(rows, []string{r.Case, cell("%.3f", r.Cost), cell("%.3f", of(r.Case, "rank").Cost), cell("%.2f", 1/r.Cost),
			cell("%.3f", theirs.Cost), cell("%.2f", 1/theirs.Cost), cell("%.3f", 1/r.Ratio), cell("%.3f", 1/r.RatioMin), cell("%.3f", 1/r.MinRatio)})
	}
	if rows == nil {
		return charts
	}
	const title = "How many times as long a step takes in two processes; ours / theirs by the median round: at most 1 is no worse"
	return append([]*chart.Chart{chart.Table(title, header, rows)}, charts...)
}
