package main

import (
	"context"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/zero"
)

// newSharded starts a run of one program on all devices that share the state.
func newSharded(ctx context.Context, backend *xla.Backend, recipe train.Recipe, p parallel) (runner, error) {
	if p.Sync == syncAuto {
		mesh, err := p.mesh(backend)
		if err != nil {
			return nil, err
		}
		return newAutoSharded(mesh, backend, recipe, p.Zero)
	}
	run, err := zero.NewSPMD(ctx, backend, recipe, p.Data, p.zeroOptions())
	if err != nil {
		return nil, inFlags(err)
	}
	return sharded{run, backend, recipe}, nil
}

// sharded is a trainer with collectives in its programs.
type sharded struct {
	train.Trainer
	backend *xla.Backend
	recipe  train.Recipe
}

func (s sharded) Train(ctx context.Context, until int, batch batchFunc, done func(metrics) error) error {
	return trainOn(ctx, wholeSteps{s.Trainer}, until, batch, done)
}

// wholeSteps makes steps that are not interrupted.
type wholeSteps struct{ train.Trainer }

func (s wholeSteps) Step(inputs, targets *tensors.Tensor) (train.Metrics, error) {
	return s.Trainer.Step(context.Background(), inputs, targets)
}

func (s sharded) Bytes() (sum int64, err error) {
	for _, n := range s.Trainer.Memory() {
		sum += n
	}
	return sum, nil
}

func (s sharded) Memory() (map[string]int64, error) { return byName(s.Trainer.Memory()), nil }

func (s sharded) Probe(fn probeFunc) (probe, error) {
	named, err := s.Params(context.Background())
	if err != nil {
		return nil, err
	}
	return newProbe(s.backend, s.recipe, named, fn)
}

// byName is memory by the names of its kinds.
func byName(bytes map[memest.Kind]int64) map[string]int64 {
	kinds := map[string]int64{}
	for kind, n := range bytes {
		kinds[string(kind)] = n
	}
	return kinds
}

// cutProgram is a program whose devices have parts of the parameters: it is probed by whole copies of them.
type cutProgram struct {
	program
	backend *xla.Backend
	recipe  train.Recipe // whose model lists parameters as the run does
}

func newAutoSharded(mesh *xla.Mesh, backend *xla.Backend, recipe train.Recipe, stage int) (runner, error) {
	model, err := chain.Of(recipe.Model)
	if err != nil {
		return nil, inFlags(err)
	}
	recipe.Model = model
	run, err := zero.NewAuto(mesh, recipe, stage)
	if err != nil {
		return nil, inFlags(err)
	}
	return cutProgram{program{run}, backend, recipe}, nil
}

func (c cutProgram) Probe(fn probeFunc) (probe, error) {
	values, err := c.Params(0)
	if err != nil {
		return nil, err
	}
	named, err := params.Zip(c.recipe.Model.Params(), values)
	if err != nil {
		return nil, err
	}
	return newProbe(c.backend, c.recipe, named, fn)
}
