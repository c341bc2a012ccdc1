package main

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/collective/mpi"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// alone trains in one process. Its losses are those of the whole batches, as two processes have them together; what is
// measured is the rows of the first of the two.
type alone struct {
	trainXLA
	whole []float64 // losses
}

func serveAlone(start startRun) func(context.Context) (subject, func(), error) {
	return func(ctx context.Context) (subject, func(), error) {
		backend, err := openXLA(ctx, 1)
		if err != nil {
			return nil, nil, err
		}
		return &alone{trainXLA: trainXLA{backend: backend, start: start}}, backend.Close, nil
	}
}

func (a *alone) prepare(params []byte) error {
	var size trainSize
	if err := json.Unmarshal(params, &size); err != nil {
		return err
	}
	if err := a.trainXLA.prepare(params); err != nil {
		return err
	}
	a.whole = a.losses
	if err := a.run.Close(); err != nil {
		return err
	}
	batches, err := gpt.Reference().Batches(size.config(), size.Batch)
	if err != nil {
		return err
	}
	inputs, targets, err := batches.Rank(trainFirst-1, 0, ddpProcesses)
	if err != nil {
		return err
	}
	return a.begin(train.Recipe{Model: size.config(), Rule: optim.AdamW(trainRate)}, inputs, targets)
}

// facts are the losses alone: memory is not what is compared.
func (a *alone) facts() (facts, error) { return facts{Values: a.whole}, nil }

// process is one of the processes that train together: a rank of a job that mpirun started.
type process struct {
	trainXLA
	ctx context.Context
	job *mpi.Job
}

// serveProcess works where the program was built with the tag mpi.
func serveProcess(ctx context.Context) (subject, func(), error) {
	job, err := mpi.World()
	if err != nil {
		return nil, nil, err
	}
	backend, err := openXLA(ctx, 1)
	if err != nil {
		return nil, nil, errors.Join(err, job.Close())
	}
	p := &process{trainXLA{backend: backend, start: startProcess(ctx, job)}, ctx, job}
	return p, func() {
		backend.Close()
		job.Close()
	}, nil
}

func (p *process) rank() int { return p.job.Rank() }

// facts are the losses of the whole batches, of this process's own.
func (p *process) facts() (f facts, err error) {
	for _, own := range p.losses {
		loss, err := ddp.Mean(p.ctx, p.job, own)
		if err != nil {
			return f, err
		}
		f.Values = append(f.Values, loss)
	}
	return f, nil
}

// processRun is a rank of lib/ddp as a [trainRun]. The loss of a step is that of its own rows.
type processRun struct {
	ctx    context.Context
	engine *ddp.Engine
	rank   *ddp.Rank
}

// startProcess has the process's only device join a group.
func startProcess(ctx context.Context, g group.Group) startRun {
	return func(backend *xla.Backend, r train.Recipe) (trainRun, error) {
		engine, err := ddp.NewEngine(backend, r, ddp.Options{})
		if err != nil {
			return nil, err
		}
		rank, err := engine.Join(ctx, g, 0)
		if err != nil {
			engine.Close()
			return nil, err
		}
		return processRun{ctx, engine, rank}, nil
	}
}

// Step implements trainRun.
func (p processRun) Step(inputs, targets *tensors.Tensor) (train.Metrics, error) {
	m, err := p.rank.Step(p.ctx, inputs, targets)
	return m.Metrics, err
}

// Close implements trainRun.
func (p processRun) Close() error {
	err := p.rank.Close()
	p.engine.Close()
	return err
}
