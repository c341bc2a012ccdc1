// Package ddp trains a model data-parallel: every device holds all parameters and
// computes the gradients of its part of the batch, and an all-reduce averages them
// before each device makes the same update (Li et al. 2020, "PyTorch Distributed:
// Experiences on Accelerating Data Parallel Training", section 3).
package ddp

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/xla"
)

// Axis is the mesh axis that batches are split over.
const Axis = "data"

// Model is what can be trained: named parameters, their initial values, and the
// mean loss over a batch as a graph function of them. gpt.Config is one.
type Model interface {
	Validate() error
	Params() params.Tree
	Init() ([]*tensors.Tensor, error)
	Loss(p params.Nodes, inputs, targets *graph.Node) *graph.Node
}

// SPMD is a training run in which one compiled program, gradients, all-reduce and
// update in one graph, runs on all devices of a mesh. It is not safe for use by
// several goroutines at once.
type SPMD struct {
	mesh   *xla.Mesh
	tree   params.Tree
	states params.Tree
	step   *xla.Program
	values []*dtensor.Tensor // parameters, then optimizer states; replicated
	done   int               // steps
}

// NewSPMD starts a run: parameters at the model's initial values, optimizer states
// at zero, on every device of a mesh whose one axis is named "data".
func NewSPMD(mesh *xla.Mesh, model Model, rule optim.Rule) (*SPMD, error) {
	if !slices.Equal(mesh.AxesNames(), []string{Axis}) {
		return nil, fmt.Errorf("ddp: the mesh has axes %q, want %q alone", mesh.AxesNames(), Axis)
	}
	if err := errors.Join(model.Validate(), rule.Validate()); err != nil {
		return nil, err
	}
	r := &SPMD{mesh: mesh, tree: model.Params()}
	r.states = optim.States(rule, r.tree)
	initial, err := model.Init()
	if err != nil {
		return nil, err
	}
	zeros, err := params.Zeros(r.states)
	if err != nil {
		return nil, err
	}
	for _, value := range append(initial, zeros...) {
		placed, err := mesh.Place(value, xla.Replicated())
		if err != nil {
			return nil, err
		}
		r.values = append(r.values, placed)
	}
	in := make([]xla.Placement, len(r.values)+1, len(r.values)+3) // the values and the step's number are replicated
	in = append(in, xla.Shard(0, Axis), xla.Shard(0, Axis))
	r.step, err = xla.Compile(mesh, r.graph(model, rule), xla.In(in...).Gives(xla.Replicated()))
	return r, err
}

// graph is one step as each device sees it. Its inputs are the parameters, the
// optimizer states, the number of the step from 1, and this device's rows of the
// inputs and the targets; its outputs the new parameters, states, and the loss.
func (r *SPMD) graph(model Model, rule optim.Rule) func([]*graph.Node) []*graph.Node {
	n, k := len(r.tree), len(r.states)
	return func(in []*graph.Node) []*graph.Node {
		weights, states, step, inputs, targets := in[:n], in[n:n+k], in[n+k], in[n+k+1], in[n+k+2]
		loss := model.Loss(r.tree.Nodes(weights), inputs, targets)
		// Devices have equally many rows, so the mean over the batch is the mean of
		// the devices' means, for the loss as for its gradients.
		means := collective.AllReduceEach(append(graph.Gradient(loss, weights...), loss), collective.Mean, Axis)
		weights, states = optim.Apply(rule, r.tree, weights, means[:n], states, step)
		return slices.Concat(weights, states, means[n:])
	}
}

// Step trains on one batch, inputs and targets of shape (B,T), and returns its
// mean loss before the update, in nats. The batch is split over the devices by
// rows; a B that the number of devices does not divide is an error. After an error
// the run stands where it stood before the call, unless Steps says otherwise.
func (r *SPMD) Step(inputs, targets *tensors.Tensor) (float64, error) {
	args := make([]any, 0, len(r.values)+3)
	for _, v := range r.values {
		args = append(args, v)
	}
	args = append(args, tensors.FromScalar(int32(r.done+1)), inputs, targets)
	out, err := r.step.Call(args...)
	if err != nil {
		return math.NaN(), fmt.Errorf("ddp: step %d: %w", r.done, err)
	}
	last := len(out) - 1
	loss, err := scalar(out[last].Shards()[0])
	if err != nil {
		return loss, err
	}
	outdated := append(slices.Clone(r.values), out[last])
	r.values = out[:last]
	r.done++
	for _, value := range outdated {
		// At once: the garbage collector would come late. An error here is one of
		// the accounting, not of the step.
		err = errors.Join(err, value.FinalizeAll())
	}
	return loss, err
}

// Steps is the number of steps done.
func (r *SPMD) Steps() int { return r.done }

// Memory is what the compiled step needs on each device. It returns an error
// before the first step.
func (r *SPMD) Memory() (xla.Memory, error) { return r.step.Memory() }

// Params returns copies of the parameters as one device holds them, in the order
// of the model's tree.
func (r *SPMD) Params(device int) ([]*tensors.Tensor, error) {
	if device < 0 || device >= r.mesh.NumDevices() {
		return nil, fmt.Errorf("ddp: device %d of %d", device, r.mesh.NumDevices())
	}
	copies := make([]*tensors.Tensor, len(r.tree))
	for i := range copies {
		var err error
		if copies[i], err = r.values[i].Shards()[device].LocalClone(); err != nil {
			return nil, err
		}
	}
	return copies, nil
}

// scalar is a scalar tensor's value.
func scalar(t *tensors.Tensor) (float64, error) {
	if t.DType() != dtypes.Float32 || !t.IsScalar() {
		return math.NaN(), fmt.Errorf("ddp: the loss has shape %v, want a Float32 scalar", t.Shape())
	}
	return float64(tensors.ToScalar[float32](t)), nil
}
