package main

import (
	"context"
	"encoding/json"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// layersXLA is a [trainXLA] of layers.
type layersXLA struct {
	trainXLA
	starts func(pipelineCase) startRun
}

func serveLayers(devices int, starts func(pipelineCase) startRun) func(context.Context) (subject, func(), error) {
	return func(ctx context.Context) (subject, func(), error) {
		backend, err := openXLA(ctx, devices)
		if err != nil {
			return nil, nil, err
		}
		return &layersXLA{trainXLA{backend: backend}, starts}, backend.Close, nil
	}
}

func (l *layersXLA) prepare(params []byte) error {
	var c pipelineCase
	if err := json.Unmarshal(params, &c); err != nil {
		return err
	}
	l.start = l.starts(c)
	inputs, targets := c.batch()
	return l.begin(train.Recipe{Model: c.model(), Optimizer: optim.SGD(pipelineRate)}, inputs, targets)
}

// facts are the losses alone: memory is not what is compared.
func (l *layersXLA) facts() (facts, error) { return facts{Values: l.losses}, nil }

func startWhole(pipelineCase) startRun { return startOne }

// startPipeline starts ranks, one a device.
func startPipeline(c pipelineCase) startRun {
	return func(backend *xla.Backend, r train.Recipe) (trainRun, error) {
		plan, err := c.schedule()
		if err != nil {
			return nil, err
		}
		return startPlan(pipeline.Options{Schedule: plan})(backend, r)
	}
}

func startPlan(o pipeline.Options) startRun {
	return func(backend *xla.Backend, r train.Recipe) (trainRun, error) {
		run, err := pipeline.New(context.Background(), backend, r, o)
		if err != nil {
			return nil, err
		}
		return trainerRun{run}, nil
	}
}

// trainerRun is a trainer as a [trainRun].
type trainerRun struct{ train.Trainer }

// Step implements trainRun.
func (r trainerRun) Step(inputs, targets *tensors.Tensor) (train.Metrics, error) {
	return r.Trainer.Step(context.Background(), inputs, targets)
}
