package main

// newData measures what data parallelism costs: each implementation trains on the full
// batch, and its cost is its time over that of the same system's step on one device. The
// devices share the machine's cores, so a cost of 1 means no overhead.
func newData() *benchmark {
	b := training{rows: dataMost}
	return &benchmark{name: "data",
		about: "a training step of the reference GPT, data-parallel, over the system's own on one device",
		flags: b.flags, cases: b.cases, implementations: dataImplementations}
}

// dataMost is the largest number of devices that a batch is sharded over.
const dataMost = 4

func dataImplementations() []implementation {
	return []implementation{
		{name: "xla", about: "this project on one XLA CPU device", role: base, serve: serveGPT(1, startOne)},
		{name: "spmd-2", about: "one program on 2 devices", role: ours, over: "xla", serve: serveGPT(2, startSPMD)},
		{name: "spmd-4", about: "one program on 4 devices", role: ours, over: "xla", serve: serveGPT(4, startSPMD)},
		{name: "ranks-2", about: "2 ranks of one process, gradients in buckets", role: ours, over: "xla",
			serve: serveGPT(2, startRanks)},
		{name: "torch", about: "eager, a thread a core", role: base, commands: trainTorch()},
		{name: "ddp-2", about: "DistributedDataParallel by gloo, 2 processes with half the cores each", role: peer,
			over: "torch", commands: trainDDP()},
		{name: "jax", about: "jit on one device, with the state donated", role: base,
			commands: python(nil, "train.py", "jax")},
		{name: "jax-2", about: "the same on a mesh of 2 devices", role: peer, over: "jax", commands: trainJAX(2)},
		{name: "jax-4", about: "the same on a mesh of 4 devices", role: peer, over: "jax", commands: trainJAX(4)},
	}
}
