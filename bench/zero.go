package main

import (
	"fmt"

	"github.com/shardbook/shardbook/lib/zero"
)

// newZero measures what ZeRO costs: the time of a data-parallel step with its state sharded over that of the same
// system's with the full state on every device. The cases are those of [newData].
func newZero() *benchmark {
	b := training{rows: dataMost}
	return &benchmark{name: "zero",
		about: "a training step of the reference GPT with ZeRO, over the system's own plain data parallelism",
		flags: b.flags, cases: b.cases, implementations: zeroImplementations}
}

// Classes of [newZero]: what is sharded.
const (
	splitStates = "states" // the optimizer's states, and gradients where the system has them
	splitAll    = "all"    // parameters besides
)

func zeroImplementations() []implementation {
	all := []implementation{
		{name: "ranks-2", about: "2 ranks of one process, each with the full state", role: base,
			serve: serveGPT(2, startRanks)},
		{name: "ranks-zero1-2", about: "the same in stage 1", role: ours, class: splitStates, over: "ranks-2",
			serve: serveGPT(2, startZeroRanks(zero.Options{Stage: 1}))},
		{name: "ranks-zero3-2", about: "the same in stage 3, parameters gathered a block ahead", role: ours,
			class: splitAll, over: "ranks-2", serve: serveGPT(2, startZeroRanks(zero.Options{Stage: 3, Prefetch: 1}))},
		{name: "ddp-2", about: "DistributedDataParallel by gloo, 2 processes with half the cores each", role: base,
			commands: trainDDP()},
		{name: "fsdp-2", about: "the same with fully_shard (FSDP2) of each block and of the model", role: peer,
			class: splitAll, over: "ddp-2", commands: trainDDP("--split=all")},
	}
	for _, n := range []int{2, dataMost} {
		name := func(of string) string { return fmt.Sprintf("%s-%d", of, n) }
		all = append(all,
			implementation{name: name("spmd"), about: "one program with the full state on each device", role: base,
				serve: serveGPT(n, startSPMD)},
			implementation{name: name("jax"), about: "jit over a mesh, the full state on each device", role: base,
				commands: trainJAX(n)},
			implementation{name: name("jax-zero1"), about: "the same, optimizer states by axis 0", role: peer,
				class: splitStates, over: name("jax"), commands: trainJAX(n, "--split=states")},
			implementation{name: name("jax-fsdp"), about: "the same, parameters too", role: peer, class: splitAll,
				over: name("jax"), commands: trainJAX(n, "--split=all")})
		for stage := 1; stage <= 3; stage++ {
			class := splitStates
			if stage == 3 {
				class = splitAll
			}
			all = append(all, implementation{name: fmt.Sprintf("zero%d-%d", stage, n),
				about: fmt.Sprintf("one program in stage %d", stage), role: ours, class: class, over: name("spmd"),
				serve: serveGPT(n, startZero(zero.Options{Stage: stage}))})
		}
	}
	return all
}
