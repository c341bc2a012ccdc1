package main

import (
	"context"

	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/zero"
)

// programRun is a trainer with one program for a step, whose memory is compared.
type programRun struct{ trainerRun }

// startZero starts one program on all devices.
func startZero(o zero.Options) startRun {
	return func(backend *xla.Backend, r train.Recipe) (trainRun, error) {
		run, err := zero.NewSPMD(context.Background(), backend, r, int(backend.NumDevices()), o)
		return programRun{trainerRun{run}}, err
	}
}

// startZeroRanks starts ranks, one a device.
func startZeroRanks(o zero.Options) startRun {
	return func(backend *xla.Backend, r train.Recipe) (trainRun, error) {
		run, err := zero.New(context.Background(), backend, r, int(backend.NumDevices()), o)
		return trainerRun{run}, err
	}
}
