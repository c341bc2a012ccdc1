package main

import (
	"fmt"
	"slices"

	"github.com/shardbook/shardbook/lib/chart"
	"github.com/shardbook/shardbook/lib/zero"
)

// zeroBench measures what it costs to split the state over the devices (ZeRO): the time
// of a data-parallel step with its state in parts over that of the same system's with all
// of it on every device. All train on the batches of [data].
type zeroBench struct{ data }

func newZero() benchmark { return &zeroBench{} }

func (*zeroBench) name() string { return "zero" }

func (*zeroBench) about() string {
	return "a training step of the reference GPT, its state split, over the system's own plain data parallelism"
}

// Classes of [zeroBench]: what is split.
const (
	splitStates = "states" // of the optimizer, and gradients where the system has them at all
	splitAll    = "all"    // parameters besides
)

func (*zeroBench) implementations() []implementation {
	all := []implementation{
		{name: "ranks-2", about: "2 ranks of one process, each with all of the state", role: base, serve: serveTraining(2, startRanks)},
		{name: "ranks-zero1-2", about: "the same in stage 1", role: ours, class: splitStates, over: "ranks-2",
			serve: serveTraining(2, startZeroRanks(zero.Options{Stage: 1}))},
		{name: "ranks-zero3-2", about: "the same in stage 3, parameters gathered a block ahead", role: ours, class: splitAll, over: "ranks-2",
			serve: serveTraining(2, startZeroRanks(zero.Options{Stage: 3, Prefetch: 1}))},
		{name: "ddp-2", about: "DistributedDataParallel by gloo, 2 processes with half the cores each", role: base,
			processes: ddpProcesses, commands: trainDDP()},
		{name: "fsdp-2", about: "the same with fully_shard (FSDP2) of each block and of the model", role: peer, class: splitAll, over: "ddp-2",
			processes: ddpProcesses, commands: trainDDP("--split=all")},
	}
	for _, n := range []int{2, dataMost} {
		name := func(of string) string { return fmt.Sprintf("%s-%d", of, n) }
		all = append(all,
			implementation{name: name("spmd"), about: "one program with all of the state on each device", role: base,
				serve: serveTraining(n, startSPMD)},
			implementation{name: name("jax"), about: "jit over a mesh, all of the state on each device", role: base, commands: trainJAX(n)},
			implementation{name: name("jax-zero1"), about: "the same, optimizer states by axis 0", role: peer, class: splitStates,
				over: name("jax"), commands: trainJAX(n, "--split=states")},
			implementation{name: name("jax-fsdp"), about: "the same, parameters too", role: peer, class: splitAll,
				over: name("jax"), commands: trainJAX(n, "--split=all")})
		for stage := 1; stage <= 3; stage++ {
			class := splitStates
			if stage == 3 {
				class = splitAll
			}
			all = append(all, implementation{name: fmt.Sprintf("zero%d-%d", stage, n), about: fmt.Sprintf("one program in stage %d", stage),
				role: ours, class: class, over: name("spmd"), serve: serveTraining(n, startZero(zero.Options{Stage: stage}))})
		}
	}
	return all
}

// charts draws the costs, ours and theirs.
func (*zeroBench) charts(records []record) (charts []*chart.Chart) {
	for _, side := range []struct {
		role
		title string
	}{{ours, "What splitting the state costs"}, {peer, "What splitting the state costs the peers"}} {
		header := []string{"", "over"}
		var names []string
		var rows [][]string
		var bars []chart.Series
		for _, r := range records {
			if r.Role != side.role {
				continue
			}
			if !slices.Contains(header, r.Case) {
				header = append(header, r.Case)
			}
			i := slices.Index(names, r.Impl)
			if i < 0 {
				i = len(names)
				names = append(names, r.Impl)
				rows = append(rows, []string{r.Impl, r.Over})
			}
			rows[i] = append(rows[i], fmt.Sprintf("%.3f (%.3f)", r.Cost, r.MinCost))
			bars = addBar(bars, r.Case, r.Cost)
		}
		if rows != nil {
			charts = append(charts,
				chart.Table(side.title+", times over plain data parallelism's: median (of least times)", header, rows),
				chart.Bar(side.title, names, bars...).Axes("", "time / plain data parallelism's"))
		}
	}
	return charts
}
