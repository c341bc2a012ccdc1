package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// trainXLA trains with this project.
type trainXLA struct {
	backend         *xla.Backend
	start           startRun
	run             trainRun
	inputs, targets *tensors.Tensor
	losses          []float64 // of the first steps
}

// trainRun is what trains: a [train.Run], or ranks.
type trainRun interface {
	// Step returns when all of the step is done. The loss is that of the whole batch.
	Step(inputs, targets *tensors.Tensor) (train.Metrics, error)
	Close() error
}

// startRun starts a run on all devices of a backend.
type startRun func(*xla.Backend, train.Recipe) (trainRun, error)

func startOne(backend *xla.Backend, r train.Recipe) (trainRun, error) {
	mesh, err := backend.Mesh(xla.Axis(train.Axis, 1))
	if err != nil {
		return nil, err
	}
	return train.New(mesh, r)
}

func serveTraining(devices int, start startRun) func(context.Context) (subject, func(), error) {
	return func(ctx context.Context) (subject, func(), error) {
		backend, err := openXLA(ctx, devices)
		if err != nil {
			return nil, nil, err
		}
		return &trainXLA{backend: backend, start: start}, backend.Close, nil
	}
}

func (t *trainXLA) prepare(params []byte) error {
	var size trainSize
	if err := json.Unmarshal(params, &size); err != nil {
		return err
	}
	run, err := t.start(t.backend, train.Recipe{Model: size.config(), Optimizer: optim.AdamW(trainRate)})
	if err != nil {
		return err
	}
	batches, err := gpt.Reference().Batches(size.config(), size.Batch)
	if err != nil {
		return err
	}
	t.run, t.losses = run, nil
	for step := range trainFirst {
		if t.inputs, t.targets, err = batches.Step(step); err != nil {
			return err
		}
		loss, err := t.step()
		if err != nil {
			return err
		}
		t.losses = append(t.losses, loss)
	}
	return nil
}

// begin starts a run all of whose steps have the same batch, and makes the first of them.
func (t *trainXLA) begin(r train.Recipe, inputs, targets *tensors.Tensor) (err error) {
	if t.run, err = t.start(t.backend, r); err != nil {
		return err
	}
	t.inputs, t.targets, t.losses = inputs, targets, nil
	for range trainFirst {
		loss, err := t.step()
		if err != nil {
			return err
		}
		t.losses = append(t.losses, loss)
	}
	return nil
}

func (t *trainXLA) step() (loss float64, err error) {
	metrics, err := t.run.Step(t.inputs, t.targets)
	return metrics.Loss, err
}

func (t *trainXLA) facts() (f facts, err error) {
	f.Values = t.losses
	switch run := t.run.(type) {
	case interface{ Memory() (xla.Memory, error) }:
		var m xla.Memory
		m, err = run.Memory()
		f.Memory = footprint{Arguments: m.Arguments, Outputs: m.Outputs - m.Aliased, Temporary: m.Temporary}
	case programRun:
		m := run.Trainer.Memory()
		f.Memory = footprint{Arguments: m[memest.Parameters] + m[memest.Master] + m[memest.Optimizer], Temporary: m[memest.Temporary]}
	}
	return f, err
}

func (t *trainXLA) sample(calls int) (float64, error) {
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

// finish looks whether the steps that were measured have trained: all of them had
// the same batch, whose loss must have fallen.
func (t *trainXLA) finish() error {
	loss, err := t.step()
	if before := t.losses[len(t.losses)-1]; err == nil && !(loss < before) {
		err = fmt.Errorf("the loss is %v after training on one batch, was %v before", loss, before)
	}
	return errors.Join(err, t.run.Close())
}
