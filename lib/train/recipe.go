// Package train builds the training step of a model with an optimizer and a precision, and runs it on devices.
//
// A [Recipe] describes a step; it is plain data. [New] compiles it for a mesh to one program that takes the run's state
// (parameters, optimizer states, loss scale and counters) and a batch, and returns the new state in the same memory. A
// [Run] holds the state on the devices, repeats the step, and saves and loads checkpoints.
//
// On a mesh of one device this is ordinary training. Techniques for several devices set [Recipe.Replicas] or build a
// step of their own from the same parts.
package train

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
)

// Model is a model to train: named parameters, their initial values, and a graph function from parameters and a batch
// to the mean loss, a scalar. gpt.Config is one; lib/params/storemodel wraps a GoMLX model as one.
type Model interface {
	Validate() error
	Params() params.Tree
	Init() ([]*tensors.Tensor, error)
	Loss(p params.Nodes, inputs, targets *graph.Node) *graph.Node
}

// Noisy is a model that uses random numbers in training, for example for dropout. The key, a uint32 scalar, differs at
// each step. row, a uint32 scalar, is the index in the full batch of the device's first example.
type Noisy interface {
	Model
	NoisyLoss(p params.Nodes, inputs, targets, key, row *graph.Node) *graph.Node
}

// Buffered is a model some of whose parameters are not trained by the optimizer: buffers, such as the running means of
// batch normalization, and frozen parameters. The loss must give, as the gradient of a buffer, its old value less its
// new one (0 for frozen parameters). A step subtracts the mean of these over micro-batches and devices. Weight decay,
// schedules and clipping do not apply to buffers, and loss scaling cancels out.
type Buffered interface {
	Model
	BufferNames() []string // some of those of Params
}

// Buffers returns the names of a model's buffers; it is empty for a model that is not [Buffered].
func Buffers(m Model) map[string]bool {
	buffers := map[string]bool{}
	if b, ok := m.(Buffered); ok {
		for _, name := range b.BufferNames() {
			buffers[name] = true
		}
	}
	return buffers
}

// Checker is a model that checks each batch before a step, for example for tokens outside of its vocabulary.
type Checker interface {
	CheckBatch(inputs, targets *tensors.Tensor) error
}

// CheckBatch returns the model's error for a batch, if it is a [Checker].
func CheckBatch(m Model, inputs, targets *tensors.Tensor) error {
	if checker, ok := m.(Checker); ok && inputs != nil && targets != nil { // or that is what is wrong
		return checker.CheckBatch(inputs, targets)
	}
	return nil
}

// Multiplier is a model that chooses the precision of its matmuls. It must choose that of Recipe.Precision.
type Multiplier interface {
	MatmulPrecision() precision.Matmul
}

// Replicas tells a step how the devices that hold the same parameters and different shards of the batch work together.
// Its methods build graphs.
type Replicas interface {
	// Mean returns the mean over the devices of each node.
	Mean(nodes []*graph.Node) []*graph.Node
	// Rank returns the device's index among the replicas, an int32 scalar; device i has the i-th shard of the batch.
	Rank(g *graph.Graph) *graph.Node
}

// Recipe is one training step.
type Recipe struct {
	Model     Model
	Optimizer optim.Optimizer

	// Precision is the types of parameters and computation, and the loss scaling. The zero value is float32 throughout.
	Precision precision.Policy
	// Clip is the largest global norm of the gradients; larger gradients are scaled down to it. 0 does not clip.
	Clip float64
	// Seed chooses the random numbers of a [Noisy] model and of stochastic rounding.
	Seed uint32
	// Replicas is required when several devices have shards of the batch; nil if one device has all of it.
	Replicas Replicas
}

// Validate returns an error that names what is invalid, with its value and what to do.
func (r Recipe) Validate() error {
	if r.Model == nil || r.Optimizer == nil {
		return errors.New("train: the recipe has no model or no optimizer: set Recipe.Model and Recipe.Optimizer")
	}
	if err := r.Model.Validate(); err != nil { // first: an invalid model may have no parameters
		return err
	}
	if len(r.Model.Params()) == 0 {
		return fmt.Errorf("train: the model, of type %T, has no parameters to train: give it some", r.Model)
	}
	if err := errors.Join(r.Model.Params().Validate(), r.Optimizer.Validate(), r.Policy().Validate()); err != nil {
		return err
	}
	if r.Clip != 0 && !(r.Clip >= 0x1p-126 && r.Clip < math.Inf(1)) {
		return fmt.Errorf("train: Recipe.Clip is %g: set it to the largest norm of the gradients, at least 2⁻¹²⁶, "+
			"or to 0 to not clip", r.Clip)
	}
	var matmul precision.Matmul
	if m, ok := r.Model.(Multiplier); ok {
		matmul = m.MatmulPrecision()
	}
	if want := r.Precision.Matmul; want != matmul {
		return fmt.Errorf("train: Recipe.Precision.Matmul is %+v but the model computes matmuls as %+v: "+
			"give the model the same (gpt.Config.Matmul)", want, matmul)
	}
	return nil
}

// NeedsAllGradients reports whether an update needs all gradients before it can begin, as clipping and loss scaling do.
func (r Recipe) NeedsAllGradients() bool { return r.Clip > 0 || len(r.Policy().Scaling.States()) > 0 }

// Policy returns Precision, or float32 throughout if it is the zero value.
func (r Recipe) Policy() precision.Policy {
	if r.Precision == (precision.Policy{}) {
		const f32 = dtypes.Float32
		return precision.Policy{Params: f32, Compute: f32, Output: f32, Reduce: f32}
	}
	return r.Precision
}

// GroupedOptimizer returns the optimizer for the weights, combined with the update that [Buffered] models need.
func (r Recipe) GroupedOptimizer() optim.Optimizer {
	buffers := Buffers(r.Model)
	if len(buffers) == 0 {
		return r.Optimizer
	}
	is := func(s params.Spec) bool { return buffers[s.Name] }
	return optim.Grouped(r.Optimizer, optim.Group{Has: is, Optimizer: optim.SGD(1)}) // old − (old − new)
}

// State lists what a run stores between steps: the parameters in the precision's type, the optimizer's states, the
// states of the loss scaling, and two counters: "train.steps" counts batches, "train.updates" updates that were not
// skipped.
func (r Recipe) State() params.Tree { return r.parts().all() }

// parts are the parts of a state, in order.
type parts struct{ params, optimizer, scaling, counters params.Tree }

func (r Recipe) parts() parts {
	tree := r.Model.Params().As(r.Policy().Params)
	p := parts{
		params:    tree,
		optimizer: optim.States(r.GroupedOptimizer(), tree),
		counters:  counterSpecs,
	}
	for _, s := range r.Policy().Scaling.States() {
		p.scaling = append(p.scaling, params.Spec{Name: "train." + s.Name, Shape: s.Shape})
	}
	return p
}

const (
	stepsName   = "train.steps"
	updatesName = "train.updates"
	counterType = dtypes.Int32
)

var counterSpecs = params.Tree{params.New(stepsName, counterType), params.New(updatesName, counterType)}

func (p parts) all() params.Tree { return slices.Concat(p.params, p.optimizer, p.scaling, p.counters) }

// cut splits the values of a state into its parts.
func cut[T any](p parts, values []T) (weights, optimizer, scaling, counters []T) {
	next := func(t params.Tree) []T {
		part := values[:len(t):len(t)]
		values = values[len(t):]
		return part
	}
	return next(p.params), next(p.optimizer), next(p.scaling), next(p.counters)
}

// Tail splits a list in the order of [Recipe.State], or one that ends in the same way, into the entries before, those
// of the loss scaling, and the counters. The list has one value of any type for each entry.
func Tail[T any](r Recipe, state []T) (before, scaling, counters []T) {
	end := len(state) - len(counterSpecs)
	begin := end - len(r.Policy().Scaling.States())
	return state[:begin:begin], state[begin:end:end], state[end:]
}

// Initial returns the values of [Recipe.State] before the first step, or the error of an invalid model.
func (r Recipe) Initial() ([]*tensors.Tensor, error) {
	weights, err := r.Model.Init()
	if err != nil {
		return nil, err
	}
	if err := params.Check(r.Model.Params(), weights); err != nil {
		return nil, err
	}
	for i, w := range weights {
		if weights[i], err = Convert(w, r.Policy().Params); err != nil {
			return nil, err
		}
	}
	p := r.parts()
	states, err := params.Zeros(p.optimizer)
	if err != nil {
		return nil, err
	}
	counters, err := params.Zeros(p.counters)
	return slices.Concat(weights, states, r.Policy().Scaling.Start(), counters), err
}
