// Package paramserver trains with data parallelism by parameter servers: workers push gradients to the servers, which
// store the parameters and optimizer states in shards, and pull new parameters (Li et al. 2014, "Scaling Distributed
// Machine Learning with the Parameter Server").
//
// Each rank is a worker with its own device, in one process (group.Run) or in several (mpi.World): an Programs has the
// programs, and [Programs.Join] makes a Worker of a group. Servers are goroutines beside the first ranks
// ([Options.Servers]); only they have optimizer states.
//
// In a step, a worker pushes the gradients of a bucket as soon as they are computed, and pulls the bucket's new
// parameters while other passes run. The next step starts with these parameters.
//
// # Reproducibility
//
// If servers wait for the gradients of all ranks, all ranks hold the same bits after each step, whatever the buckets
// and servers: a server sums in the order of the ranks. The results are those of lib/ddp up to rounding. With
// [Options.Async] runs are not reproducible; [Metrics.Staleness] is the number of updates by which gradients were late.
//
// # Traffic
//
// A rank without a server sends all gradients and receives all parameters, in the type in which gradients are summed. A
// server sends and receives each of its buckets N−1 times. Each message is preceded by one of 24 bytes. Gradients in a
// half type other than the parameters' are summed in the parameters' type.
package paramserver
