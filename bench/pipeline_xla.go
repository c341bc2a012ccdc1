package main

import (
	"context"
	"encoding/json"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/collective/group"
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
	return l.begin(train.Recipe{Model: c.model(), Rule: optim.SGD(pipelineRate)}, inputs, targets)
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
		engine, err := pipeline.NewEngine(backend, r)
		if err != nil {
			return nil, err
		}
		p, err := engine.Pipeline(pipeline.Options{Schedule: plan})
		if err != nil {
			engine.Close()
			return nil, err
		}
		return joinRanks(backend, engine, func(ctx context.Context, g group.Group, device int) (trainRank, error) {
			rank, err := p.Join(ctx, g, device)
			if err != nil {
				return trainRank{}, err
			}
			return trainRank{func(ctx context.Context, inputs, targets *tensors.Tensor) (float64, error) {
				m, err := rank.Step(ctx, inputs, targets)
				// The loss is where the last stage is, and the mean of the ranks is taken.
				return m.Loss * float64(len(plan.Ranks)), err
			}, rank.Close}, nil
		})
	}
}
