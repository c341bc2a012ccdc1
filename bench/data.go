package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"

	"github.com/shardbook/shardbook/lib/chart"
)

// data measures what data parallelism costs: each implementation trains on the whole
// batch, and its cost is its time over that of the same system's step on one device. The
// devices share the machine's cores, so a cost of 1 is one that is paid for nothing.
type data struct{ training }

func newData() benchmark { return &data{} }

func (*data) name() string { return "data" }

func (*data) about() string {
	return "a training step of the reference GPT, data-parallel, over the system's own on one device"
}

// dataMost is the largest number of devices that a batch is split over.
const dataMost = 4

// ddpProcesses is how many processes PyTorch trains in.
const ddpProcesses = 2

func (b *data) cases() ([]testCase, error) {
	cases, err := b.training.cases()
	for _, c := range cases {
		if rows := c.params.(trainParams).Batch; rows%dataMost != 0 {
			return nil, fmt.Errorf("%s: a batch of %d sequences, want a multiple of %d", c.name, rows, dataMost)
		}
	}
	return cases, err
}

func (b *data) implementations() []implementation {
	return []implementation{
		{name: "xla", about: "this project on one XLA CPU device", role: base, serve: serveTraining(1, startOne)},
		{name: "spmd-2", about: "one program on 2 devices", role: ours, over: "xla", serve: serveTraining(2, startSPMD)},
		{name: "spmd-4", about: "one program on 4 devices", role: ours, over: "xla", serve: serveTraining(4, startSPMD)},
		{name: "ranks-2", about: "2 ranks of one process, gradients in buckets", role: ours, over: "xla",
			serve: serveTraining(2, startRanks)},
		{name: "torch", about: "eager, a thread a core", role: base,
			commands: trainPeer(nil, "torch", "--threads="+strconv.Itoa(runtime.NumCPU()))},
		{name: "ddp-2", about: "DistributedDataParallel by gloo, 2 processes with half the cores each", role: peer, over: "torch",
			processes: ddpProcesses, commands: trainDDP()},
		{name: "jax", about: "jit on one device, with the state given up", role: base, commands: trainPeer(nil, "jax")},
		{name: "jax-2", about: "the same on a mesh of 2 devices", role: peer, over: "jax", commands: trainJAX(2)},
		{name: "jax-4", about: "the same on a mesh of 4 devices", role: peer, over: "jax", commands: trainJAX(4)},
	}
}

// trainJAX trains on a mesh of devices of the host.
func trainJAX(devices int, args ...string) func(context.Context, place) ([]*exec.Cmd, error) {
	n := strconv.Itoa(devices)
	return trainPeer([]string{jaxDevices(devices)}, append([]string{"jax", "--devices=" + n}, args...)...)
}

func jaxDevices(n int) string {
	return "XLA_FLAGS=--xla_force_host_platform_device_count=" + strconv.Itoa(n)
}

func trainDDP(args ...string) func(context.Context, place) ([]*exec.Cmd, error) {
	return torchProcesses(ddpProcesses, "train.py", append([]string{"torch"}, args...)...)
}

// torchProcesses starts processes that share the cores, and find each other by a file.
func torchProcesses(n int, script string, args ...string) func(context.Context, place) ([]*exec.Cmd, error) {
	return func(ctx context.Context, p place) (commands []*exec.Cmd, err error) {
		store, err := os.MkdirTemp(p.dir, "torch-")
		for rank := range n {
			cmd := exec.CommandContext(ctx, p.python, slices.Concat([]string{filepath.Join(p.scripts, script)}, args, []string{
				"--threads=" + strconv.Itoa(max(1, runtime.NumCPU()/n)), "--rank=" + strconv.Itoa(rank),
				"--ranks=" + strconv.Itoa(n), "--store=" + filepath.Join(store, "store")})...)
			cmd.Env = append(os.Environ(), "GLOO_SOCKET_IFNAME="+loopback(), "CUDA_VISIBLE_DEVICES=")
			commands = append(commands, cmd)
		}
		return commands, err
	}
}

// charts draws the costs, and lists them with the times.
func (b *data) charts(records []record) []*chart.Chart {
	return costCharts("data parallelism", "one device's", records)
}

// costCharts draws what something costs, over whose time, and lists it with the times.
func costCharts(what, over string, records []record) []*chart.Chart {
	header := []string{"case", "", "ms", "over", "cost", "of least times", "ratio", "of least times"}
	var cases []string
	var rows [][]string
	var bars []chart.Series
	for _, r := range records {
		if !slices.Contains(cases, r.Case) {
			cases = append(cases, r.Case)
		}
		rows = append(rows, []string{r.Case, r.Impl, cell("%.4g", r.MedianMS), r.Over, cell("%.3f", r.Cost), cell("%.3f", r.MinCost),
			cell("%.2f", r.Ratio), cell("%.2f", r.MinRatio)})
		bars = addBar(bars, r.Impl, r.Cost)
	}
	charts := []*chart.Chart{chart.Table("Costs are times over "+over+"; ratios are the peers' costs over ours", header, rows)}
	// A bar for each case: who cannot do all of them is in the table alone.
	if bars = slices.DeleteFunc(bars, func(s chart.Series) bool { return len(s.Y) < len(cases) }); len(bars) > 0 {
		charts = append(charts, chart.Bar("What "+what+" costs", cases, bars...).Axes("", "time / "+over))
	}
	return charts
}
