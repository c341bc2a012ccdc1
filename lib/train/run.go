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

// Axis is the mesh axis that batches are split over.
const Axis = "data"

// Run is a run of a recipe on the devices of a mesh: its state lies there, the same on each but for what the model is
// cut into ([Shared]), and each step replaces it. It is not safe for use by several goroutines at once.
type Run struct {
	recipe Recipe
	mesh   *xla.Mesh
	layout layout
	parts  parts // of the state
	step   *xla.Program
	on     []xla.Placement // of the state, in its order
	cut    bool            // some of the state is not all on each device
	state  []*dtensor.Tensor
	steps  int
}

// Metrics is what a step reports.
type Metrics struct {
	Loss float64 // mean over the batch before the update, in nats
	// GradNorm is the norm of all gradients together, before clipping; not finite where they are not. 0 where
	// Recipe.Clip is not set.
	GradNorm float64
	// Skipped is true if a gradient was not finite, so that the update was left out: see
	// precision.Scaling. All else stays as it was but the loss scale and the count of batches.
	Skipped bool
	Scale   float64 // that the loss was multiplied by
}

// New starts a run: parameters at the model's initial values and everything else at the recipe's, on every device of a
// mesh. Its first axis is named "data", and there is no other but those of a [Shared] model. Several devices that have
// different rows or tokens need [Recipe.Replicas].
func New(mesh *xla.Mesh, r Recipe) (*Run, error) {
	if err := errors.Join(given(mesh), r.Validate()); err != nil {
		return nil, err
	}
	l, err := newLayout(mesh, r)
	if err != nil {
		return nil, err
	}
	return start(mesh, l, xla.Compile, nil)
}

// NewAuto is New with a step that is written for one device: the compiler cuts it, since the batch is split over the
// devices of the first axis by rows, and puts the collectives in (AutoSharding). The mesh may have further axes. lie
// says how each entry of [Recipe.State] lies on the mesh, of which the first are the parameters; nil is that all
// devices have all of it.
func NewAuto(mesh *xla.Mesh, r Recipe, lie func(i int, s params.Spec) xla.Placement) (*Run, error) {
	if r.Replicas != nil {
		return nil, errors.New("train: Recipe.Replicas is set, and the compiler itself shares the step: leave it nil")
	}
	if _, ok := r.Model.(Shared); ok {
		return nil, fmt.Errorf("train: a %T says itself what devices share: give the model of one device", r.Model)
	}
	if err := errors.Join(given(mesh), r.Validate()); err != nil {
		return nil, err
	}
	if names := mesh.AxesNames(); names[0] != Axis {
		return nil, fmt.Errorf("train: the mesh has axes %q, want %q as the first", names, Axis)
	}
	return start(mesh, wholeLayout(r), xla.CompileAuto, lie)
}

// given returns an error if there is no mesh.
func given(mesh *xla.Mesh) error {
	if mesh == nil {
		return errors.New("train: the mesh is nil: make one with Backend.Mesh")
	}
	return nil
}

// compiler is xla.Compile or xla.CompileAuto.
type compiler func(mesh *xla.Mesh, fn func(in []*graph.Node) []*graph.Node, layout xla.Layout) (*xla.Program, error)

func start(mesh *xla.Mesh, l layout, compile compiler, lie func(i int, s params.Spec) xla.Placement) (*Run, error) {
	r := l.recipe
	initial, err := r.Initial()
	if err != nil {
		return nil, err
	}
	run := &Run{recipe: r, mesh: mesh, layout: l, parts: r.parts()}
	for i, s := range r.State() {
		on := l.place(i)
		if lie != nil {
			on, run.cut = lie(i, s), true
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

// place puts a state on the devices in place of the one that is there. An error leaves that one.
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

// finalize frees device memory at once: the garbage collector would come late.
func finalize(values []*dtensor.Tensor) error {
	var errs []error
	for _, v := range values {
		errs = append(errs, v.FinalizeAll())
	}
	return errors.Join(errs...)
}

// Step trains on one batch, inputs and targets of shape (B,T), which is split over the devices by rows; a B that the
// number of devices does not divide is an error. An error that can be known before the devices run leaves the run where
// it stood. After any other the state is lost, as the message says, and the run must be loaded or begun again.
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

// MetricsOf reads the vector that [Recipe.Update] returns last.
func MetricsOf(vector *tensors.Tensor) (Metrics, error) {
	flat, err := tensors.CopyFlatData[float32](vector)
	if err != nil {
		return Metrics{}, err
	}
	return Metrics{Loss: float64(flat[0]), GradNorm: float64(flat[1]), Skipped: flat[2] == 0, Scale: float64(flat[3])}, nil
}

// Steps is the number of batches trained on since the run began, and so the number of the next one, from 0.
func (r *Run) Steps() int { return r.steps }

// Memory is what the compiled step needs on each device. It returns an error before the first step.
func (r *Run) Memory() (xla.Memory, error) { return r.step.Memory() }

// Collectives is what the compiled step has of operations between devices. It returns an error before the first step.
func (r *Run) Collectives() (xla.Report, error) { return r.step.Collectives() }

// BytesPerDevice is the memory that the state takes on each device, in bytes: that of the "parameters", in the type
// that they are kept in, and of the "optimizer"'s states. Counters and loss scale, a few bytes, are not counted.
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

// Params returns copies of the parameters as one device holds them, or whole where they are cut, in the order of the
// model's tree and in the type that the precision keeps them in.
func (r *Run) Params(device int) ([]*tensors.Tensor, error) {
	return r.whole(device, r.state[:len(r.parts.params)])
}

// State returns copies of the whole state as one device holds it, or whole where it is cut, in the order of
// [Recipe.State].
func (r *Run) State(device int) ([]*tensors.Tensor, error) { return r.whole(device, r.state) }

func (r *Run) copies(device int, values []*dtensor.Tensor) ([]*tensors.Tensor, error) {
	if device < 0 || device >= r.mesh.NumDevices() {
		return nil, fmt.Errorf("train: device %d of %d", device, r.mesh.NumDevices())
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

// whole is copies of the first entries of the state, put together of what devices have.
func (r *Run) whole(device int, values []*dtensor.Tensor) ([]*tensors.Tensor, error) {
	copies, err := r.copies(device, values)
	for i := range copies {
		if err == nil {
			copies[i], err = r.layout.join(i, copies[i])
		}
	}
	return copies, err
}

// Close frees the state and the program. The run must not be used after.
func (r *Run) Close() error {
	r.step.Close()
	state := r.state
	r.state = nil
	return finalize(state)
}

// Probe is a graph function of a run's parameters, compiled: what the model says now.
type Probe struct {
	run     *Run
	program *xla.Program
}

// Probe compiles a function of the parameters, by name and in the type that the model computes in, and of other inputs.
// Each device gets all of every input and computes the same. The run is not changed.
func (r *Run) Probe(fn func(p params.Nodes, in []*graph.Node) []*graph.Node) (*Probe, error) {
	if r.layout.shares.Axis != "" || len(r.layout.shares.Tokens) > 0 {
		return nil, errors.New("train: a probe of a model that devices share: " +
			"take its Params, and ask the model of one device")
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

// Call returns the function's results for the parameters as they are now.
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

// Memory is what the compiled function needs on each device. It returns an error before the first call.
func (p *Probe) Memory() (xla.Memory, error) { return p.program.Memory() }

// Close frees the compiled function.
func (p *Probe) Close() { p.program.Close() }
