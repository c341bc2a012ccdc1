// Package ddp trains a model data-parallel: every device holds all parameters and computes the gradients of its part of
// the batch; what the devices learn is put together before, or after, each makes its update.
//
// In one program (SPMD): [NewSPMD] has one all-reduce in the graph (Li et al. 2020, "PyTorch Distributed: Experiences
// on Accelerating Data Parallel Training", §3), and [NewAuto] leaves it to the compiler. Nothing is seen of either
// while they run.
//
// By ranks, each with a device of its own: [New] starts all of them in this process, and [Join] makes the process one
// rank of a group (mpi.World). [Options] say what ranks do together, and [Options.Plan] shows it, operation by
// operation: it is a plan of a step (lib/step), which [Average], [IntoBuckets] and [Local] write.
//
//	[Naive]     an all-reduce for each gradient, after the backward pass
//	[Overlap]   each as soon as its block's backward pass is done
//	[Bucketed]  Overlap, with gradients in buckets (the default)
//
// besides gradient accumulation, sums or means of losses, local SGD, and gradients that are compressed on their way
// ([Hook]). Parameter servers are package paramserver; lib/parallel has the same options together with other
// techniques.
//
// # What is equal
//
// After any number of steps all ranks hold the same bits, but in local SGD between its averages. Naive, Overlap and
// Bucketed make the same bits of the same batches, whatever the buckets are: gradients are summed in the order of the
// ranks. That holds between goroutines; Open MPI adds up in an order of its own. One program over the whole batch adds
// up in yet another, within its matmuls, so runs differ from it by rounding.
//
// # What is sent
//
// By a ring, each rank sends 2(N−1)/N times the bytes of all gradients a step, if N divides the elements of each
// bucket; else some ranks send a few elements more and others fewer, and all together 2(N−1) times the bytes.
// Parameters that the loss does not depend on have no gradients to send. The losses of the ranks are added up besides,
// one number.
package ddp
