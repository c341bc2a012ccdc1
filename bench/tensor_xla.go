package main

import (
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// startParallel has all devices of a backend, along a mesh axis of that name, share the recipe's model as another says.
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
