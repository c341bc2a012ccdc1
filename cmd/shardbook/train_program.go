package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/shardbook/shardbook/internal/job"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/zero"
)

// program is a runner of one program for a step, on one device or on all of them.
type program struct {
	*train.Run
	backend *xla.Backend
	recipe  train.Recipe // whose model has the parameters in the order of the run
	cut     bool         // devices have shards of the parameters
}

// newProgram starts a run of one program on a layout's devices.
func newProgram(backend *xla.Backend, j *job.Job, recipe train.Recipe, l parallel.Layout) (runner, error) {
	p := j.Parallel
	axes := []xla.MeshAxis{xla.Axis(train.Axis, l.Data)}
	for _, a := range []xla.MeshAxis{xla.Axis(parallel.Ring, l.Ring), xla.Axis(parallel.Ulysses, l.Ulysses),
		xla.Axis(parallel.Tensor, l.Tensor)} {
		if a.Size > 1 {
			axes = append(axes, a)
		}
	}
	mesh, err := backend.Mesh(axes...)
	if err != nil {
		return nil, err
	}
	var run *train.Run
	switch {
	case p.Sync == job.Auto && p.Zero > 0:
		if recipe.Model, err = chain.Of(recipe.Model); err == nil {
			run, err = zero.NewAuto(mesh, recipe, p.Zero)
		}
	case p.Sync == job.Auto && p.Tensor > 0:
		run, err = train.NewAuto(mesh, recipe, j.Model.Rules().Auto(parallel.Tensor, p.Tensor))
	case p.Sync == job.Auto:
		run, err = ddp.NewAuto(mesh, recipe)
	case p.Sync == job.SPMD:
		run, err = ddp.NewSPMD(mesh, recipe)
	default:
		run, err = train.New(mesh, recipe)
	}
	if err != nil {
		return nil, job.InFlags(err)
	}
	return program{run, backend, recipe, p.Sharing() || p.Zero > 0}, nil
}

func (p program) Train(ctx context.Context, until int, batch batchFunc, done func(metrics) error) error {
	for p.Steps() < until && ctx.Err() == nil {
		inputs, targets, err := batch(p.Steps())
		if err != nil {
			return err
		}
		m, err := p.Step(inputs, targets)
		if err != nil {
			return err
		}
		memory, err := p.Run.Memory()
		if err != nil {
			return err
		}
		if err := done(metrics{Metrics: m, Bytes: memory.Total()}); err != nil {
			return err
		}
	}
	return nil
}

func (p program) Save(ctx context.Context, dir string, meta any, keep int) error {
	_, err := p.Run.Save(ctx, dir, meta, keep)
	return err
}

func (p program) Memory() (map[string]int64, error) {
	kinds := p.BytesPerDevice()
	if memory, err := p.Run.Memory(); err == nil { // else no step has run
		kinds["temporary"] = memory.Temporary
	}
	return kinds, nil
}

// Probe is of copies of the full parameters where devices have shards.
func (p program) Probe(fn probeFunc) (probe, error) {
	if !p.cut {
		return p.Run.Probe(fn)
	}
	values, err := p.Params(0)
	if err != nil {
		return nil, err
	}
	named, err := params.Zip(p.recipe.Model.Params(), values)
	if err != nil {
		return nil, err
	}
	return newProbe(p.backend, p.recipe, named, fn)
}

// collective counts the operations of one kind that a device takes part in, in a step: see xla.Traffic.
type collective struct {
	Kind  string `json:"kind"`
	Count int    `json:"count"`
	Bytes int64  `json:"bytes"` // of their data on the device
}

// collectives are those of the compiled program, if it is tensor- or sequence-parallel and has run; else nil.
func (t *training) collectives() (all []collective, err error) {
	run, ok := t.run.(program)
	if !ok || len(t.records) == 0 || !t.job.Parallel.Sharing() {
		return nil, nil
	}
	report, err := run.Collectives()
	for _, c := range report {
		all = append(all, collective{c.Kind.String(), c.Count, c.Bytes})
	}
	return all, err
}

// collectivesText writes collectives as text.
func collectivesText(all []collective) string {
	var parts []string
	for _, c := range all {
		parts = append(parts, fmt.Sprintf("%s ×%d, %s", c.Kind, c.Count, bytesText(c.Bytes)))
	}
	return strings.Join(parts, "; ")
}
