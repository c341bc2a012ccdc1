package train

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/xla"
)

// Axis is the mesh axis of data parallelism: batches are split over it.
const Axis = "data"

// Run trains a recipe on the devices of a mesh. Each device holds the state, or its shard of it if the model is
// [Shared], and each step replaces it. A Run is not safe for use by several goroutines at once.
type Run struct {
	recipe Recipe
	mesh   *xla.Mesh
	layout layout
	parts  parts // of the state
	step   *xla.Program
	on     []xla.Placement // of the state, in its order
	cut    bool            // whether some of the state is sharded
	state  []*dtensor.Tensor
	steps  int
}

// Metrics is what a step reports.
type Metrics struct {
	Loss float64 // mean over the batch before the update, in nats
	// GradNorm is the global norm of the gradients before clipping; not finite if a gradient is not. 0 if Recipe.Clip
	// is 0.
	GradNorm float64
	// Skipped reports that a gradient was not finite, so that the update was skipped: only the loss scale and the
	// count of batches changed. See precision.Scaling.
	Skipped bool
	Scale   float64 // the loss scale
}

// New starts a run on a mesh from the model's initial parameters. The mesh's first axis must be named "data"; it has
// further axes only for a [Shared] model. Several devices with different examples or tokens need [Recipe.Replicas].
func New(mesh *xla.Mesh, r Recipe) (*Run, error) {
	if err := errors.Join(checkMesh(mesh), r.Validate()); err != nil {
		return nil, err
	}
	l, err := newLayout(mesh, r)
	if err != nil {
		return nil, err
	}
	return start(mesh, l, xla.Compile, nil)
}

// NewAuto is New for a mesh on which XLA's SPMD partitioner (auto sharding) splits a step that is written for one
// device: it splits the batch over the mesh's first axis, "data", and inserts the collectives. The mesh may have more
// axes. placement returns how entry i of [Recipe.State], whose first entries are the parameters, is placed on the mesh;
// nil replicates everything.
func NewAuto(mesh *xla.Mesh, r Recipe, placement func(i int, s params.Spec) xla.Placement) (*Run, error) {
	if r.Replicas != nil {
		return nil, errors.New("train: Recipe.Replicas is set, but the compiler splits the step itself: leave it nil")
	}
	if _, ok := r.Model.(Shared); ok {
		return nil, fmt.Errorf("train: a %T splits its step over devices itself: pass the model of one device", r.Model)
	}
	if err := errors.Join(checkMesh(mesh), r.Validate()); err != nil {
		return nil, err
	}
	if names := mesh.AxesNames(); names[0] != Axis {
		return nil, fmt.Errorf("train: the mesh has axes %q, want %q as the first", names, Axis)
	}
	return start(mesh, replicatedLayout(r), xla.CompileAuto, placement)
}

func checkMesh(mesh *xla.Mesh) error {
	if mesh == nil {
		return errors.New("train: the mesh is nil: make one with Backend.Mesh")
	}
	return nil
}

// compiler is xla.Compile or xla.CompileAuto.
type compiler func(mesh *xla.Mesh, fn func(in []*graph.Node) []*graph.Node, layout xla.Shardings) (*xla.Program, error)

func start(mesh *xla.Mesh, l layout, compile compiler, placement func(int, params.Spec) xla.Placement) (*Run, error) {
	r := l.recipe
	initial, err := r.Initial()
	if err != nil {
		return nil, err
	}
	run := &Run{recipe: r, mesh: mesh, layout: l, parts: r.parts()}
	for i, s := range r.State() {
		on := l.place(i)
		if placement != nil {
			on, run.cut = placement(i, s), true
		}
		run.on = append(run.on, on)
	}
	if err := run.place(initial); err != nil {
		return nil, err
	}
	n := len(run.state)
	in := append(slices.Clone(run.on), xla.Shard(0, Axis), xla.Shard(0, Axis))
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	run.step, err = compile(mesh, l.graph, xla.In(in...).Gives(append(slices.Clone(run.on),
		xla.Replicated())...).Donates(all...))
	if err != nil {
		return nil, errors.Join(err, finalize(run.state))
	}
	return run, nil
}

// place replaces the state on the devices. If it fails, the old state remains.
func (r *Run) place(values []*tensors.Tensor) error {
	state := make([]*dtensor.Tensor, len(values))
	for i, v := range values {
		all, err := r.layout.cuts[i].Stack(v)
		if err == nil {
			state[i], err = r.mesh.Place(all, r.on[i])
		}
		if err != nil {
			return errors.Join(err, finalize(state[:i]))
		}
	}
	old := r.state
	r.state = state
	return finalize(old)
}

// finalize frees device memory at once, since the garbage collector would do so late.
func finalize(values []*dtensor.Tensor) error {
	var errs []error
	for _, v := range values {
		errs = append(errs, v.FinalizeAll())
	}
	return errors.Join(errs...)
}

// Step trains on one batch, inputs and targets of shape (B,T), which is split over the devices along B. An error found
// before the devices run, for example that the number of devices does not divide B, leaves the run unchanged.
// Any later error makes the state unusable, as its message says: load a checkpoint or start a new run.
func (r *Run) Step(inputs, targets *tensors.Tensor) (Metrics, error) {
	if err := CheckBatch(r.recipe.Model, inputs, targets); err != nil {
		return Metrics{}, fmt.Errorf("train: step %d: %w", r.steps, err)
	}
	args := make([]any, 0, len(r.state)+2)
	for _, v := range r.state {
		args = append(args, v)
	}
	out, err := r.step.Call(append(args, inputs, targets)...)
	if err != nil {
		return Metrics{}, fmt.Errorf("train: step %d: %w", r.steps, err)
	}
	last := len(out) - 1
	r.state = out[:last]
	r.steps++
	m, err := MetricsOf(out[last].Shards()[0])
	return m, errors.Join(err, out[last].FinalizeAll())
}

// MetricsOf decodes the last output of [Recipe.Update].
func MetricsOf(vector *tensors.Tensor) (Metrics, error) {
	flat, err := tensors.CopyFlatData[float32](vector)
	if err != nil {
		return Metrics{}, err
	}
	return Metrics{Loss: float64(flat[0]), GradNorm: float64(flat[1]), Skipped: flat[2] == 0, Scale: float64(flat[3])},
		nil
}

// Steps returns the number of batches trained on, which is also the number of the next one, from 0.
func (r *Run) Steps() int { return r.steps }

// Memory returns the memory that the compiled step needs on each device, or an error before the first step.
func (r *Run) Memory() (xla.Memory, error) { return r.step.Memory() }

// Collectives reports the collectives in the compiled step, or an error before the first step.
func (r *Run) Collectives() (xla.Report, error) { return r.step.Collectives() }

// Operations lists the operations of the compiled step, or returns an error before the first step.
func (r *Run) Operations() ([]xla.Operation, error) { return r.step.Operations() }

// BytesPerDevice returns the bytes of the state on each device: "parameters", in the type that they are stored in, and
// "optimizer" for its states. The counters and the loss scale, a few bytes, are not counted.
func (r *Run) BytesPerDevice() map[string]int64 {
	bytes := func(values []*dtensor.Tensor) (sum int64) {
		for _, v := range values {
			sum += v.ShardShape().ByteSize()
		}
		return sum
	}
	weights, optimizer, _, _ := cut(r.parts, r.state)
	return map[string]int64{"parameters": bytes(weights), "optimizer": bytes(optimizer)}
}

// Params returns copies of a device's parameters, or of the full parameters where they are sharded, in the order of the
// model's tree and in the type that the precision stores them in. With names it returns these, in their order.
func (r *Run) Params(device int, names ...string) ([]*tensors.Tensor, error) {
	if names == nil {
		return r.full(device, r.state[:len(r.parts.params)])
	}
	all := make([]*tensors.Tensor, len(names))
	for k, name := range names {
		i := r.parts.params.Index(name)
		if i < 0 {
			return nil, fmt.Errorf("train: the model has no parameter %q: give names of Model.Params", name)
		}
		one, err := r.copies(device, r.state[i:i+1])
		if err == nil {
			all[k], err = r.layout.join(i, one[0])
		}
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// State returns copies of a device's state, or of the full state where it is sharded, in the order of [Recipe.State].
func (r *Run) State(device int) ([]*tensors.Tensor, error) { return r.full(device, r.state) }

func (r *Run) copies(device int, values []*dtensor.Tensor) ([]*tensors.Tensor, error) {
	if device < 0 || device >= r.mesh.NumDevices() {
		return nil, fmt.Errorf("train: device %d: choose one from 0 to %d", device, r.mesh.NumDevices()-1)
	}
	copies := make([]*tensors.Tensor, len(values))
	for i, v := range values {
		var err error
		if v.ShardShape().Equal(v.Shape()) {
			copies[i], err = v.Shards()[device].LocalClone()
		} else {
			copies[i], err = v.Merge()
		}
		if err != nil {
			return nil, err
		}
	}
	return copies, nil
}

// full returns full copies of the first entries of the state.
func (r *Run) full(device int, values []*dtensor.Tensor) ([]*tensors.Tensor, error) {
	copies, err := r.copies(device, values)
	for i := range copies {
		if err == nil {
			copies[i], err = r.layout.join(i, copies[i])
		}
	}
	return copies, err
}

// Close frees the state and the program. The run can not be used afterwards.
func (r *Run) Close() error {
	r.step.Close()
	state := r.state
	r.state = nil
	return finalize(state)
}

// Probe is a compiled function of a run's current parameters, for example an evaluation.
type Probe struct {
	run     *Run
	program *xla.Program
}

// Probe compiles a function of the parameters, by name and in the type that the model computes in, and of other inputs.
// Every device gets the full inputs and computes the same. The run is not changed.
func (r *Run) Probe(fn func(p params.Nodes, in []*graph.Node) []*graph.Node) (*Probe, error) {
	if r.layout.shards.Axis != "" || len(r.layout.shards.Tokens) > 0 {
		return nil, errors.New("train: Probe does not support models with tensor or sequence parallelism: " +
			"use Run.Params with the model of one device")
	}
	var compile compiler = xla.Compile
	if r.cut {
		compile = xla.CompileAuto
	}
	tree := r.recipe.Model.Params().As(r.recipe.Policy().Compute)
	program, err := compile(r.mesh, func(in []*graph.Node) []*graph.Node {
		return fn(tree.Nodes(precision.Cast(in[:len(tree)], r.recipe.Policy().Compute)), in[len(tree):])
	}, xla.In(append(slices.Clone(r.on[:len(tree)]), xla.Replicated())...).Gives(xla.Replicated()))
	return &Probe{r, program}, err
}

// Call returns the function's results for the current parameters.
func (p *Probe) Call(args ...any) ([]*tensors.Tensor, error) {
	all := make([]any, 0, len(args)+len(p.run.state))
	for _, v := range p.run.state[:len(p.run.parts.params)] {
		all = append(all, v)
	}
	out, err := p.program.Call(append(all, args...)...)
	if err != nil {
		return nil, fmt.Errorf("train: probe: %w", err)
	}
	results, err := p.run.copies(0, out)
	return results, errors.Join(err, finalize(out))
}

// Memory returns the memory that the compiled function needs on each device, or an error before the first call.
func (p *Probe) Memory() (xla.Memory, error) { return p.program.Memory() }

// Close frees the compiled function.
func (p *Probe) Close() { p.program.Close() }
