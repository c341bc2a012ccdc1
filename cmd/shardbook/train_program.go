package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/job"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/paramserver"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/zero"
)

// program is one program for a step, on one device or on all of them, as a rank.
type program struct {
	*train.Run
	recipe train.Recipe // whose model has the parameters in the order of the run
}

// program starts one program on a layout's devices.
func (r *ranks) program(j *job.Job, l parallel.Layout) error {
	p, recipe := j.Parallel, r.recipe
	axes := []xla.MeshAxis{xla.Axis(train.Axis, l.Data)}
	for _, a := range []xla.MeshAxis{xla.Axis(parallel.Ring, l.Ring), xla.Axis(parallel.Ulysses, l.Ulysses),
		xla.Axis(parallel.Tensor, l.Tensor)} {
		if a.Size > 1 {
			axes = append(axes, a)
		}
	}
	mesh, err := r.backend.Mesh(axes...)
	if err != nil {
		return err
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
		return err
	}
	return r.join(1, func(context.Context, int) (rank, error) { return program{run, recipe}, nil })
}

func (p program) Step(_ context.Context, inputs, targets *tensors.Tensor) (metrics, error) {
	m, err := p.Run.Step(inputs, targets)
	if err != nil {
		return metrics{}, err
	}
	memory, err := p.Run.Memory()
	return metrics{Metrics: m, Bytes: memory.Total()}, err
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

func (p program) Params(_ context.Context, names ...string) (params.Named[*tensors.Tensor], error) {
	values, err := p.Run.Params(0, names...)
	if err != nil {
		return nil, err
	}
	if names == nil {
		names = p.recipe.Model.Params().Names()
	}
	all := params.Named[*tensors.Tensor]{}
	for i, name := range names {
		all[name] = values[i]
	}
	return all, nil
}

// collective counts the operations of one kind that a device takes part in, in a step: see xla.Traffic.
type collective struct {
	Kind  string `json:"kind"`
	Count int    `json:"count"`
	Bytes int64  `json:"bytes"` // of their data on the device
}

// collectives are those of the compiled program, if it is tensor- or sequence-parallel and has run; else nil.
func (t *training) collectives() (all []collective, err error) {
	run, ok := t.run.ranks[0].(program)
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

// serve starts ranks with parameter servers.
func (r *ranks) serve(p job.Parallel) error {
	e, err := paramserver.NewPrograms(r.backend, r.recipe, paramserver.Options{Async: p.Sync == job.Async,
		Servers: p.Servers, BucketBytes: int64(p.BucketBytes), Accumulate: p.Accumulate, Trace: r.recorder})
	if err != nil {
		return err
	}
	if r.close = e.Close; p.Sync == job.Async {
		r.lag = asyncLag
	}
	groups, err := r.mpi.Groups(p.Data)
	if err != nil {
		return err
	}
	return r.join(len(groups), func(ctx context.Context, i int) (rank, error) {
		g := groups[i]
		if r.link != (group.Link{}) {
			var err error
			if g, err = group.Slow(g, r.link); err != nil {
				return nil, err
			}
		}
		one, err := e.Join(ctx, g, i)
		return serverRank{one, e, r}, err
	})
}

// serverRank is a rank that pulls parameters from servers and pushes gradients to them.
type serverRank struct {
	*paramserver.Worker
	engine *paramserver.Programs
	of     *ranks
}

func (r serverRank) Step(ctx context.Context, inputs, targets *tensors.Tensor) (metrics, error) {
	m, err := r.Worker.Step(ctx, inputs, targets)
	return metrics{Metrics: m.Metrics, Staleness: m.Staleness, Bytes: r.of.peak()}, err
}

// Memory leaves out optimizer states, which may be on other ranks.
func (r serverRank) Memory() (map[string]int64, error) {
	kinds := map[string]int64{"peak": r.of.peak(), "gradients": 0,
		"parameters": r.of.recipe.Model.Params().As(r.of.recipe.Policy().Params).Bytes()}
	for _, b := range r.engine.Buckets() {
		kinds["gradients"] += b.Bytes()
	}
	return kinds, nil
}
