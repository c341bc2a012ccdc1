package main

import (
	"context"

	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

func startSPMD(backend *xla.Backend, r train.Recipe) (trainRun, error) {
	mesh, err := backend.Mesh(xla.Axis(train.Axis, backend.NumDevices()))
	if err != nil {
		return nil, err
	}
	return ddp.NewSPMD(mesh, r)
}

func startRanks(backend *xla.Backend, r train.Recipe) (trainRun, error) {
	run, err := ddp.New(context.Background(), backend, r, backend.NumDevices(), ddp.Options{})
	return trainerRun{run}, err
}
