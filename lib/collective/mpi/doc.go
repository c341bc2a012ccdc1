// Package mpi runs ranks as processes, on one host or several, with Open MPI between them. World is a group.Group: what
// is written for goroutines that share memory (group.Run) runs unchanged under mpirun.
//
// The package needs Open MPI 4 and the build tag mpi; without the tag World only says so. On Debian and Ubuntu:
//
//	apt-get install openmpi-bin libopenmpi-dev pkg-config
//	go build -tags mpi -o train ./cmd/train
//	mpirun -n 4 ./train
//
// Started without mpirun a program is a world of one rank. As root, mpirun wants OMPI_ALLOW_RUN_AS_ROOT=1 and
// OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; with more ranks than cores, --oversubscribe and --mca mpi_yield_when_idle 1.
// Several hosts need --host and the program at the same path on each.
//
// # Buffers
//
// Open MPI gets the callers' buffers, in Go's memory or a device's that the CPU can
// address. Only the result of a reduce-scatter in place is copied.
//
// A reduction of bfloat16 or float16 is computed in float32 and rounded after each
// addition, since partial sums are sent in the 16-bit type; group.Run rounds once. The mean is the sum, rounded,
// divided in float32 and rounded again. A maximum or minimum of floats is NaN where any rank has NaN.
//
// # Deadlines and failures
//
// No call hangs. MPI itself would: it has no deadlines, and its calls return no error when a host fails. So ranks
// announce each call to each other before data moves, never block in MPI, and give up when the context or the timeout
// ends. A rank that waits for another sleeps in between, and uses little of its core; while data moves it polls,
// without sleeping for at most a second.
//
// The announcements cost Size−1 small messages per rank and collective, about as much as
// a barrier; a barrier is these messages and nothing else.
//
// MPI may still complete the requests of a call that gave up. Their buffers in Go's memory are never freed; a device's
// memory must not be freed either. After a failure the process should end: print the error, call Close, and exit with a
// status other than 0. To continue from a checkpoint, start mpirun again.
//
// When a process is killed or exits without Close, mpirun ends the others within seconds, before they see a failure.
// With --enable-recovery it lets them run on, and they return the failure; mpirun's own exit status is then 0. When a
// network is cut, the ranks return the failure, but mpirun may hang after they exit: run it under timeout(1). With
// --mca oob_tcp_keepalive_time 3 --mca oob_tcp_keepalive_intvl 1 --mca oob_tcp_keepalive_probes 3 it notices by itself
// within about eight seconds and ends the job, if calls have a longer timeout than that.
//
// One call moves up to 2³¹−1 elements in gathers, scatters, reduce-scatters and
// all-to-alls; the others have no limit. A group that was split lasts until Close.
package mpi

import _ "github.com/shardbook/shardbook/internal/half" // whose header reduce.c includes
