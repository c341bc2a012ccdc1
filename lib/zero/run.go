package zero

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/offload"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// Run is a run on all devices of a mesh, each step of which is one program. It is not safe for use by several goroutines at
// once.
type Run struct {
	*inOne
	mesh    *xla.Mesh
	entries []entry
	program *xla.Program
	held    heldBy[*dtensor.Tensor]
	steps   int
	lost    error
}

// New starts a run at the model's initial parameters. The mesh has the one axis train.Axis, along which everything is
// sharded, or before it the axis [Replicas], for hybrid sharding: each place along that has a copy of the state.
//
// Bytes counts what lies on a device between steps. Gradients, and what is gathered, live within the program, whose
// plan [Run.Memory] reports.
func New(mesh *xla.Mesh, recipe train.Recipe, o Options) (*Run, error) {
	model, recipe, err := chainOf(recipe, o)
	if err != nil {
		return nil, err
	}
	if mesh == nil {
		return nil, errors.New("zero: the mesh is nil: make one with Backend.Mesh")
	}
	axes := mesh.AxesNames()
	if !slices.Equal(axes, []string{train.Axis}) && !slices.Equal(axes, []string{Replicas, train.Axis}) {
		return nil, fmt.Errorf("zero: the mesh has axes %q, want %q alone or %q before it", axes, train.Axis, Replicas)
	}
	if o.Shards != 0 || o.Offload || o.Activations != offload.Device || o.Trace != nil {
		return nil, errors.New("zero: Options.Shards, Offload, Activations and Trace are for ranks: use NewEngine, or leave them out; hybrid " +
			"sharding takes a mesh with the axis Replicas")
	}
	shards, err := mesh.AxisSize(train.Axis)
	if err != nil {
		return nil, err
	}
	s := &inOne{options: o.withDefaults(), recipe: recipe, model: model, policy: recipe.Policy(), axes: axes, world: mesh.NumDevices()}
	s.passes = chain.Passes{Model: model, Precision: s.policy, Keep: !o.Recompute}
	s.layout = newLayout(model, recipe.Optimizer(), model.Params().As(s.policy.Params), shards)
	r := &Run{inOne: s, mesh: mesh}
	if r.entries, err = entries(recipe, s.layout); err != nil {
		return nil, err
	}
	initial, err := recipe.Initial()
	if err != nil {
		return nil, err
	}
	if err := r.place(func(want checkpoint.Range, i int) (*tensors.Tensor, error) {
		return cutOut(initial[i], want)
	}); err != nil {
		return nil, err
	}
	on := r.placements()
	donated := make([]int, len(on))
	for i := range donated {
		donated[i] = i
	}
	rows := xla.Shard(0, axes...)
	layout := xla.In(append(slices.Clone(on), rows, rows)...).Gives(append(on, xla.Replicated())...).Donates(donated...)
	if r.program, err = xla.Compile(mesh, s.graph, layout); err != nil {
		return nil, errors.Join(err, r.free())
	}
	return r, nil
}

// Step implements [Trainer]. The loss is the mean over the whole batch. An error that can be known before the devices run
// leaves the run where it stood; after any other it is lost, as the message says.
func (r *Run) Step(ctx context.Context, inputs, targets *tensors.Tensor) (train.Metrics, error) {
	if err := errors.Join(r.lost, ctx.Err(), train.CheckBatch(r.recipe.Model, inputs, targets)); err != nil {
		return train.Metrics{}, err
	}
	var args []any
	for _, v := range r.held.all() {
		args = append(args, v)
	}
	out, err := r.program.Call(append(args, inputs, targets)...)
	if err != nil {
		return train.Metrics{}, fmt.Errorf("zero: step %d: %w", r.steps, err)
	}
	last := len(out) - 1
	r.held = split(out[:last], len(r.units), r.policy.Mixed())
	r.steps++
	m, err := train.MetricsOf(out[last].Shards()[0])
	return m, errors.Join(err, out[last].FinalizeAll())
}

// Steps implements [Trainer].
func (r *Run) Steps() int { return r.steps }

// Bytes implements [Trainer]: what lies on each device between steps.
func (r *Run) Bytes() Bytes {
	b := Bytes{}
	count := func(kind memest.Kind, values []*dtensor.Tensor) {
		for _, v := range values {
			b[kind] += v.ShardShape().ByteSize()
		}
	}
	count(memest.Parameters, r.held.weights)
	count(memest.Master, r.held.masters)
	if len(r.held.rest) > 0 { // it is not closed
		optimizer, _, _ := train.Tail(r.recipe, r.held.rest)
		count(memest.Optimizer, optimizer)
	}
	return b
}

// Memory is what the compiled step needs on each device. It returns an error before the first step.
func (r *Run) Memory() (xla.Memory, error) { return r.program.Memory() }

// Collectives is what the compiled step has of operations between devices. It returns an error before the first step.
func (r *Run) Collectives() (xla.Report, error) { return r.program.Collectives() }

// Prepare compiles the step for batches such as these without running it, so that Memory and Collectives can be asked
// first.
func (r *Run) Prepare(inputs, targets *tensors.Tensor) error {
	var args []any
	for _, v := range r.held.all() {
		args = append(args, v)
	}
	return r.program.Prepare(append(args, inputs, targets)...)
}

// Close implements [Trainer].
func (r *Run) Close() error {
	if r.lost != nil {
		return nil
	}
	r.lost = errors.New("zero: the run is closed: begin another")
	r.program.Close()
	return r.free()
}

// Params implements [Trainer].
func (r *Run) Params(context.Context) (params.Named[*tensors.Tensor], error) {
	if r.lost != nil {
		return nil, r.lost
	}
	units := make([][]byte, len(r.units))
	for i := range units {
		for rank := range r.shards {
			data, err := r.kept(i, rank)
			if err != nil {
				return nil, err
			}
			units[i] = append(units[i], data...)
		}
	}
	return r.wholeParams(units)
}
