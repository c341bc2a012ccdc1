package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/collective/mpi"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/zero"
)

// trial is what a worker trains.
type trial struct {
	start  startRun
	recipe train.Recipe
	batch  batches

	// measured, if not nil, are the batches that are measured, by another run than the one
	// whose losses are checked. Otherwise the last batch is.
	measured batches

	// sleeps is set where passes sleep: then losses have no meaning.
	sleeps bool
}

// batches returns the batch of a step.
type batches = func(step int) (inputs, targets *tensors.Tensor, err error)

// trainSubject trains with this project.
type trainSubject struct {
	backend *xla.Backend
	read    func(params []byte) (trial, error)

	task            trial
	run             trainRun
	inputs, targets *tensors.Tensor
	loss            float64 // of the last checked step
}

// trainRun is a [train.Run] or, by way of trainerRun, a [train.Trainer].
type trainRun interface {
	// Step returns when the step is done. The loss is that of the full batch.
	Step(inputs, targets *tensors.Tensor) (train.Metrics, error)
	Close() error
}

type trainerRun struct{ train.Trainer }

// Step implements trainRun.
func (r trainerRun) Step(inputs, targets *tensors.Tensor) (train.Metrics, error) {
	return r.Trainer.Step(context.Background(), inputs, targets)
}

// startRun starts a run on all devices of a backend.
type startRun func(*xla.Backend, train.Recipe) (trainRun, error)

// startTrainer is the startRun of a trainer.
func startTrainer(start func(context.Context, *xla.Backend, train.Recipe, int) (train.Trainer, error)) startRun {
	return func(backend *xla.Backend, r train.Recipe) (trainRun, error) {
		run, err := start(context.Background(), backend, r, backend.NumDevices())
		return trainerRun{run}, err
	}
}

// Ways to train: on one device; data-parallel, as one program and as ranks; in ZeRO's stages; and as a pipeline.
var (
	startOne startRun = func(backend *xla.Backend, r train.Recipe) (trainRun, error) {
		mesh, err := backend.Mesh(xla.Axis(train.Axis, 1))
		if err != nil {
			return nil, err
		}
		return train.New(mesh, r)
	}
	startSPMD startRun = func(backend *xla.Backend, r train.Recipe) (trainRun, error) {
		mesh, err := backend.Mesh(xla.Axis(train.Axis, backend.NumDevices()))
		if err != nil {
			return nil, err
		}
		return ddp.NewSPMD(mesh, r)
	}
	startRanks = startTrainer(func(ctx context.Context, backend *xla.Backend, r train.Recipe, n int) (train.Trainer,
		error) {
		return ddp.New(ctx, backend, r, n, ddp.Options{})
	})
)

func startZero(o zero.Options) startRun {
	return startTrainer(func(ctx context.Context, backend *xla.Backend, r train.Recipe, n int) (train.Trainer, error) {
		return zero.NewSPMD(ctx, backend, r, n, o)
	})
}

func startZeroRanks(o zero.Options) startRun {
	return startTrainer(func(ctx context.Context, backend *xla.Backend, r train.Recipe, n int) (train.Trainer, error) {
		return zero.New(ctx, backend, r, n, o)
	})
}

func startPipeline(o pipeline.Options) startRun {
	return startTrainer(func(ctx context.Context, backend *xla.Backend, r train.Recipe, _ int) (train.Trainer, error) {
		return pipeline.New(ctx, backend, r, o)
	})
}

// startParallel has all devices share the recipe's model along a mesh axis, by tensor or context parallelism.
func startParallel(axis string, model gpt.Parallel) startRun {
	return func(backend *xla.Backend, r train.Recipe) (trainRun, error) {
		mesh, err := backend.Mesh(xla.Axis(train.Axis, 1), xla.Axis(axis, backend.NumDevices()))
		if err != nil {
			return nil, err
		}
		model.Config = r.Model.(gpt.Config)
		r.Model = model
		return ddp.NewSPMD(mesh, r)
	}
}

// gptTrial trains the model of a [trainSize] on the reference text. Of the first of two processes only its half of a
// batch is measured.
func gptTrial(start startRun, half bool) func([]byte) (trial, error) {
	return func(params []byte) (t trial, err error) {
		var size trainSize
		if err := json.Unmarshal(params, &size); err != nil {
			return t, err
		}
		batches, err := gpt.Reference().Batches(size.config(), size.Batch)
		if err != nil {
			return t, err
		}
		recipe := train.Recipe{Model: size.model(), Optimizer: optim.AdamW(trainRate)}
		t = trial{start: start, recipe: recipe, batch: batches.Step}
		if half {
			t.measured = func(int) (inputs, targets *tensors.Tensor, err error) {
				return batches.Rank(trainFirst-1, 0, ddpProcesses)
			}
		}
		return t, nil
	}
}

func serveGPT(devices int, start startRun) server {
	return serveTrial(devices, gptTrial(start, false))
}

func serveTrial(devices int, of func(params []byte) (trial, error)) server {
	return func(ctx context.Context) (subject, func(), error) {
		// The time of the first step includes compilation, as that of the peers does.
		backend, err := openXLA(ctx, devices, xla.CompileAfresh())
		if err != nil {
			return nil, nil, err
		}
		return &trainSubject{backend: backend, read: of}, backend.Close, nil
	}
}

// serveProcess makes this process one rank of a job that mpirun started. It works where the program was built with the
// tag mpi.
func serveProcess(ctx context.Context) (subject, func(), error) {
	job, err := mpi.World()
	if err != nil {
		return nil, nil, err
	}
	join := startTrainer(func(_ context.Context, backend *xla.Backend, r train.Recipe, _ int) (train.Trainer, error) {
		return ddp.Join(ctx, group.Group(job), backend, 0, r, ddp.Options{})
	})
	s, end, err := serveGPT(1, join)(ctx)
	if err != nil {
		return nil, nil, errors.Join(err, job.Close())
	}
	return s, func() {
		end()
		job.Close()
	}, nil
}

func (t *trainSubject) prepare(params []byte) (f facts, err error) {
	if t.task, err = t.read(params); err != nil {
		return f, err
	}
	if f.Values, f.FirstMS, err = t.first(t.task.batch); err != nil {
		return f, err
	}
	if f.Memory, err = t.memory(); err != nil {
		return f, err
	}
	if t.task.sleeps {
		return facts{}, nil
	}
	if measured := t.task.measured; measured != nil {
		if err = t.run.Close(); err == nil {
			_, _, err = t.first(measured)
		}
	}
	return f, err
}

// first starts a run, makes its first steps, and returns their losses and the first one's time in milliseconds.
func (t *trainSubject) first(batch batches) (losses []float64, took float64, err error) {
	if t.run, err = t.task.start(t.backend, t.task.recipe); err != nil {
		return nil, 0, err
	}
	for step := range trainFirst {
		if t.inputs, t.targets, err = batch(step); err != nil {
			return nil, 0, err
		}
		begin := time.Now()
		if t.loss, err = t.step(); err != nil {
			return nil, 0, err
		}
		if step == 0 {
			took = milliseconds(begin, 1)
		}
		losses = append(losses, t.loss)
	}
	return losses, took, nil
}

func (t *trainSubject) step() (loss float64, err error) {
	metrics, err := t.run.Step(t.inputs, t.targets)
	return metrics.Loss, err
}

// memory is that of the step's program on a device.
func (t *trainSubject) memory() (footprint, error) {
	if run, ok := t.run.(*train.Run); ok {
		m, err := run.Memory()
		return footprint{Arguments: m.Arguments, Outputs: m.Outputs - m.Aliased, Temporary: m.Temporary,
			DevicePeak: devicePeak(t.backend)}, err
	}
	m := t.run.(trainerRun).Memory()
	return footprint{Arguments: m[memest.Parameters] + m[memest.Master] + m[memest.Optimizer],
		Temporary: m[memest.Temporary]}, nil
}

func (t *trainSubject) sample(calls int) (float64, error) {
	if _, err := t.step(); err != nil { // the first call after a pause is slow
		return 0, err
	}
	begin := time.Now()
	for range calls {
		if _, err := t.step(); err != nil {
			return 0, err
		}
	}
	return milliseconds(begin, calls), nil
}

// finish checks that the measured steps have trained: all of them had the same batch, so its loss must have fallen.
func (t *trainSubject) finish() error {
	if t.task.sleeps {
		return t.run.Close()
	}
	loss, err := t.step()
	if err == nil && !(loss < t.loss) {
		err = fmt.Errorf("the loss is %v after training on one batch, was %v before", loss, t.loss)
	}
	return errors.Join(err, t.run.Close())
}
