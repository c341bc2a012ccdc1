// Package ddp trains a model data-parallel: every device holds all parameters and computes the gradients of its part of
// the batch; what the devices learn is put together before, or after, each makes its update.
//
// In one program (SPMD): [NewSPMD] has one all-reduce in the graph (Li et al. 2020, "PyTorch Distributed: Experiences on
// Accelerating Data Parallel Training", §3), and [NewAuto] leaves it to the compiler. Nothing is seen of either while they
// run.
//
// By ranks, each with programs and a device of its own, in one process (group.Run) or in several (mpi.World): an [Engine]
// has the programs, [Engine.Join] makes a [Rank] of a group, and [Options] say what ranks do together.
//
//	[Naive]     an all-reduce for each gradient, after the backward pass
//	[Overlap]   each as soon as its block's backward pass is done
//	[Bucketed]  Overlap, with gradients in buckets (the default)
//	[Server]    parameter servers, which wait for all gradients of a step
//	[Async]     parameter servers that wait for none
//
// besides gradient accumulation, sums or means of losses, local SGD, and gradients that are compressed on their way
// ([Hook]).
//
// # What is equal
//
// After any number of steps all ranks hold the same bits, but with Async, and in local SGD between its averages. Naive,
// Overlap, Bucketed and Server make the same bits of the same batches, whatever the buckets and servers are, and, where no
// two blocks share a parameter, those that one rank makes with the ranks' parts as its micro-batches
// (Options.Accumulate): gradients are summed in the order of the ranks. That holds between goroutines; Open MPI adds up in
// an order of its own. One program over the whole batch adds up in yet another, within its products, so runs differ from
// it by rounding.
//
// # What is sent
//
// By a ring, each rank sends 2(N−1)/N times the bytes of all gradients a step, if N divides the elements of each bucket;
// else some ranks send a few elements more and others fewer, and all together 2(N−1) times the bytes. Parameters that the loss does not
// depend on have no gradients to send. With servers a rank that has none sends all gradients, and gets all parameters; a
// server sends and gets each of its buckets N−1 times; each message is preceded by one of 24 bytes.
package ddp
