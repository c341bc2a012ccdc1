package main

import (
	"context"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/job"
	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// runner trains a model on its devices, and holds the state: one program, or ranks. Its methods are for one goroutine.
type runner interface {
	// Train trains up to a step, counted from 1, and calls done after each step, in order. When the context ends, it
	// returns nil after the current step; see Steps. When done returns an error, it stops and returns that error.
	Train(ctx context.Context, until int, batch batchFunc, done func(metrics) error) error
	// Steps is the number of steps since the beginning of the run.
	Steps() int
	// Save and Load are those of train.Run.
	Save(ctx context.Context, dir string, meta any, keep int) error
	Load(ctx context.Context, c *checkpoint.Checkpoint) error
	// Memory is the bytes on a device, by kind.
	Memory() (map[string]int64, error)
	// Probe is that of train.Run.
	Probe(fn probeFunc) (probe, error)
	Close() error
}

// metrics are the results of a step.
type metrics struct {
	train.Metrics
	Staleness float64 // of gradients, with asynchronous parameter servers
	Bytes     int64   // on a device while a step runs
}

// batchFunc returns the batch of a step, counted from 0. It may be called by several goroutines at once.
type batchFunc func(step int) (inputs, targets *tensors.Tensor, err error)

// newRunner starts a run of a job in a layout on the backend's devices. in is for ranks.
func newRunner(ctx context.Context, backend *xla.Backend, j *job.Job, l parallel.Layout, recipe train.Recipe,
	batch batchFunc, in around) (runner, error) {
	var start func(r *ranks) error
	switch {
	case j.Parallel.Sync.Served():
		start = func(r *ranks) error { return r.serve(j.Parallel) }
	case j.Parallel.Planned():
		plan, err := planOn(ctx, backend, j, l, recipe, batch, in.mpi)
		if err != nil {
			return nil, err
		}
		start = func(r *ranks) error { return r.carryOut(plan, j.Parallel.OneProgram()) }
	default:
		return newProgram(backend, j, recipe, l)
	}
	r := newRanks(ctx, backend, recipe, in)
	if err := start(r); err != nil {
		if in.mpi == nil { // with MPI the process ends
			r.Close()
		}
		return nil, job.InFlags(err)
	}
	return r, nil
}
