package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// trainXLA trains with this project on a mesh of one device.
type trainXLA struct {
	mesh            *xla.Mesh
	run             *train.Run
	inputs, targets *tensors.Tensor
	losses          []float64 // of the first steps
}

func serveTrainXLA(ctx context.Context) (subject, func(), error) {
	backend, err := xla.OpenContext(ctx, xla.Devices(1), xla.Plugin("cpu"))
	if err != nil {
		return nil, nil, err
	}
	mesh, err := backend.Mesh(xla.Axis(train.Axis, 1))
	return &trainXLA{mesh: mesh}, backend.Close, err
}

func (t *trainXLA) prepare(params []byte) error {
	var size trainSize
	if err := json.Unmarshal(params, &size); err != nil {
		return err
	}
	run, err := train.New(t.mesh, train.Recipe{Model: size.config(), Rule: optim.AdamW(trainRate)})
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

// step returns when all of the step is done.
func (t *trainXLA) step() (loss float64, err error) {
	metrics, err := t.run.Step(t.inputs, t.targets)
	return metrics.Loss, err
}

func (t *trainXLA) facts() (facts, error) {
	m, err := t.run.Memory()
	return facts{Values: t.losses, Memory: footprint{
		Arguments: m.Arguments,
		Outputs:   m.Outputs - m.Aliased,
		Temporary: m.Temporary,
	}}, err
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
