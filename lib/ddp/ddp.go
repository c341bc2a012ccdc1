// Package ddp trains a model with data parallelism: every device holds all parameters and computes the gradients of its
// shard of the batch, and the gradients are averaged before each device updates its parameters.
//
// [New] trains with ranks of one device each in this process, and [Join] makes the process one rank of a group
// (mpi.World). [Options.Sync] says when gradients are all-reduced:
//
//	[Naive]     each gradient by itself, after the backward pass
//	[Overlap]   each as soon as its block's backward pass is done
//	[Bucketed]  as Overlap, with gradients in buckets (the default)
//
// Other options are gradient accumulation, local SGD, losses that are sums, and compression of gradients ([Hook]).
// [Options.Plan] shows what each rank does, as a plan of package step; [Average], [IntoBuckets] and [Local] write it.
// lib/parallel combines these options with other techniques; lib/paramserver has parameter servers.
//
// [NewSPMD] compiles one program for all devices with one all-reduce (Li et al. 2020, "PyTorch Distributed: Experiences
// on Accelerating Data Parallel Training", §3), and [NewAuto] leaves the communication to the compiler.
//
// # Reproducibility
//
// After each step all ranks hold the same bits, except in local SGD between its averages. Naive, Overlap and Bucketed
// compute the same bits, whatever the size of the buckets, since gradients are summed in the order of the ranks. That
// holds between goroutines; Open MPI has an order of its own. A program for the full batch sums in another order,
// within its matmuls, so results differ from it by rounding.
//
// # Traffic
//
// With a ring all-reduce each rank sends 2(N−1)/N times the bytes of all gradients per step, if N divides the elements
// of each bucket; otherwise some ranks send a few elements more and others fewer, 2(N−1) times the bytes in total.
// Parameters that the loss does not depend on send nothing. The losses are all-reduced as well, one number per rank.
package ddp
