package main

import (
	"context"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// runner has the state of a run on its devices, and trains it: a way to share the work is one. Its methods are for one
// goroutine.
type runner interface {
	// Train trains on the batches up to that of step until, counted from 1, and gives what each whole step reported to done,
	// in order. Where the context ends, it ends behind the step under way; that is no error, and Steps says where. An error
	// of done ends it in the same way, and is returned.
	Train(ctx context.Context, until int, batch batchFunc, done func(metrics) error) error
	// Steps is the number of steps made since the beginning of the run.
	Steps() int
	// Save and Load are those of train.Run.
	Save(ctx context.Context, dir string, meta any, keep int) error
	Load(ctx context.Context, c *checkpoint.Checkpoint) error
	// Bytes is what lies on a device while a step runs, once one has run. It may be called in Train by done.
	Bytes() (int64, error)
	// Memory is what lies on a device, by kind.
	Memory() (map[string]int64, error)
	// Probe is that of train.Run.
	Probe(fn probeFunc) (probe, error)
	Close() error
}

// batchFunc returns the batch of a step, counted from 0. It may be called by several goroutines at once.
type batchFunc func(step int) (inputs, targets *tensors.Tensor, err error)

// newRunner starts a run of a job on the backend's devices. Only ranks have anything around them.
func newRunner(ctx context.Context, backend *xla.Backend, j *job, recipe train.Recipe, batch batchFunc, in around) (runner, error) {
	p := j.Parallel
	if !p.oneProgram() {
		e, n, err := newEngine(ctx, backend, j, recipe, batch, in)
		if err != nil {
			return nil, inFlags(err)
		}
		r, err := newRanks(ctx, backend, recipe, e, n, in)
		if err != nil {
			return nil, err
		}
		return r, nil
	}
	if p.sharing() != "" {
		return newShared(backend, j, recipe)
	}
	if p.Zero > 0 {
		return newSharded(ctx, backend, recipe, p)
	}
	mesh, err := p.mesh(backend)
	if err != nil {
		return nil, err
	}
	start := train.New
	switch p.Sync {
	case syncSPMD:
		start = ddp.NewSPMD
	case syncAuto:
		start = ddp.NewAuto
	}
	run, err := start(mesh, recipe)
	if err != nil {
		return nil, err
	}
	return program{run}, nil
}

// stepper makes one step after another.
type stepper interface {
	Steps() int
	Step(inputs, targets *tensors.Tensor) (train.Metrics, error)
}

// trainOn is [runner.Train] for one program.
func trainOn(ctx context.Context, s stepper, until int, batch batchFunc, done func(metrics) error) error {
	for s.Steps() < until && ctx.Err() == nil {
		inputs, targets, err := batch(s.Steps())
		if err != nil {
			return err
		}
		m, err := s.Step(inputs, targets)
		if err != nil {
			return err
		}
		if err := done(metrics{Metrics: m}); err != nil {
			return err
		}
	}
	return nil
}

// program is one program, on one device or on all of them.
type program struct{ *train.Run }

func (p program) Train(ctx context.Context, until int, batch batchFunc, done func(metrics) error) error {
	return trainOn(ctx, p.Run, until, batch, done)
}

func (p program) Save(ctx context.Context, dir string, meta any, keep int) error {
	_, err := p.Run.Save(ctx, dir, meta, keep)
	return err
}

func (p program) Bytes() (int64, error) {
	memory, err := p.Run.Memory()
	return memory.Total(), err
}

func (p program) Memory() (map[string]int64, error) {
	kinds := p.BytesPerDevice()
	if memory, err := p.Run.Memory(); err == nil { // else no step has run
		kinds["temporary"] = memory.Temporary
	}
	return kinds, nil
}

func (p program) Probe(fn probeFunc) (probe, error) { return p.Run.Probe(fn) }
