package main

import (
	"context"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/zero"
)

// zeroRun is a [trainRun].
type zeroRun struct{ *zero.Run }

func (r zeroRun) Step(inputs, targets *tensors.Tensor) (train.Metrics, error) {
	return r.Run.Step(context.Background(), inputs, targets)
}

// startZero starts one program on all devices.
func startZero(o zero.Options) startRun {
	return func(backend *xla.Backend, r train.Recipe) (trainRun, error) {
		mesh, err := backend.Mesh(xla.Axis(train.Axis, backend.NumDevices()))
		if err != nil {
			return nil, err
		}
		run, err := zero.New(mesh, r, o)
		if err != nil {
			return nil, err
		}
		return zeroRun{run}, nil
	}
}

// startZeroRanks starts ranks, one a device.
func startZeroRanks(o zero.Options) startRun {
	return func(backend *xla.Backend, r train.Recipe) (trainRun, error) {
		engine, err := zero.NewEngine(backend, r, o)
		if err != nil {
			return nil, err
		}
		return joinRanks(backend, engine, func(ctx context.Context, g group.Group, device int) (trainRank, error) {
			rank, err := engine.Join(ctx, g, device)
			if err != nil {
				return trainRank{}, err
			}
			return trainRank{func(ctx context.Context, inputs, targets *tensors.Tensor) (float64, error) {
				m, err := rank.Step(ctx, inputs, targets)
				return m.Loss, err
			}, rank.Close}, nil
		})
	}
}
