// Package paramserver trains a model data-parallel with parameter servers: some ranks have the parameters and their
// optimizer states in parts, workers push gradients to them and pull new parameters (Li et al. 2014, "Scaling
// Distributed Machine Learning with the Parameter Server").
//
// Every rank is a worker, with a device of its own, in one process (group.Run) or in several (mpi.World): an [Engine]
// has the programs, and [Engine.Join] makes a [Rank] of a group. Servers are goroutines beside the first ranks
// ([Options.Servers]), and alone have the optimizer's states.
//
// In a step a worker pushes the gradients of a bucket as soon as its passes have made them, and pulls what the server
// makes of the bucket's parameters while other passes go on. The next step begins with these.
//
// # What is equal
//
// Where servers wait for all gradients of a step, all ranks hold the same bits after it, whatever the buckets and
// servers are: a server sums in the order of the ranks. They are within rounding those of lib/ddp's all-reduces of the
// same batches. With [Options.Async] no run is like another, and [Metrics.Staleness] says by how many updates a
// gradient came late.
//
// # What is sent
//
// A rank that has no server sends all gradients, and gets all parameters, in the type that gradients are summed in; a
// server sends and gets each of its buckets N−1 times; each message is preceded by one of 24 bytes. Gradients in a half
// type other than the parameters' are summed in that of the parameters.
package paramserver
