package main

import (
	"context"
	"encoding/json"
	"errors"

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
	return a.begin(train.Recipe{Model: size.config(), Optimizer: optim.AdamW(trainRate)}, inputs, targets)
}

// facts are the losses alone: memory is not what is compared.
func (a *alone) facts() (facts, error) { return facts{Values: a.whole}, nil }

// process is one of the processes that train together: a rank of a job that mpirun started.
type process struct {
	trainXLA
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
	p := &process{trainXLA{backend: backend, start: startProcess(ctx, job)}, job}
	return p, func() {
		backend.Close()
		job.Close()
	}, nil
}

func (p *process) rank() int { return p.job.Rank() }

// facts are the losses of the whole batches.
func (p *process) facts() (facts, error) { return facts{Values: p.losses}, nil }

// startProcess has the process's only device join a group.
func startProcess(ctx context.Context, g group.Group) startRun {
	return func(backend *xla.Backend, r train.Recipe) (trainRun, error) {
		rank, err := ddp.Join(ctx, g, backend, 0, r, ddp.Options{})
		return trainerRun{rank}, err
	}
}
