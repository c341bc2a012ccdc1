package main

import (
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// newShared starts a run of one program whose devices share layers or sequences.
func newShared(backend *xla.Backend, j *job, recipe train.Recipe) (runner, error) {
	axes, err := j.axes()
	if err != nil {
		return nil, err
	}
	mesh, err := backend.Mesh(axes...)
	if err != nil {
		return nil, err
	}
	var run *train.Run
	if j.Parallel.Sync == syncAuto {
		run, err = train.NewAuto(mesh, recipe, j.Model.Rules().Auto(tensorAxis, j.Parallel.Tensor))
	} else {
		run, err = ddp.NewSPMD(mesh, recipe)
	}
	if err != nil {
		return nil, inFlags(err)
	}
	return cutProgram{program{run}, backend, recipe}, nil
}
