// Package train makes a training step of a model, an optimizer and a precision, and runs it on devices.
//
// A [Recipe] says what a step does; it is plain data. [New] compiles it for a mesh to one program that takes the whole
// state of the run, parameters, optimizer states, loss scale and counters, and a batch, and returns the new state in
// the memory of the old. A [Run] holds that state on the devices, repeats the step, and saves and loads the state.
//
// On a mesh of one device that is ordinary training. Techniques that use several devices say how by [Recipe.Replicas]
// or make a step of their own from the same parts.
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

// Model is what can be trained: named parameters, their initial values, and the mean loss over a batch, a scalar, as a
// graph function of them. gpt.Config is one, and lib/params/storemodel makes one of a GoMLX model.
type Model interface {
	Validate() error
	Params() params.Tree
	Init() ([]*tensors.Tensor, error)
	Loss(p params.Nodes, inputs, targets *graph.Node) *graph.Node
}

// Noisy is a model that is trained with noise, such as dropout. The key is a uint32 scalar, another one at each step;
// row, a uint32 scalar too, is the place in the whole batch of the first row that the device has.
type Noisy interface {
	Model
	NoisyLoss(p params.Nodes, inputs, targets, key, row *graph.Node) *graph.Node
}

// Buffered is a model some of whose parameters are buffers, and not weights: the running means of batch normalization,
// and what is frozen. What the loss gives as the gradient of a buffer is its change, the old value less the new: 0
// where it is frozen. A step makes it the old less the mean of these changes over micro-batches and devices. The
// optimizer, with its decay and its schedule, and clipping leave buffers alone, and the scale of a loss cancels out.
type Buffered interface {
	Model
	BufferNames() []string // some of those of Params
}

// Buffers returns the names of a model's buffers: none where it is not [Buffered].
func Buffers(m Model) map[string]bool {
	buffers := map[string]bool{}
	if b, ok := m.(Buffered); ok {
		for _, name := range b.BufferNames() {
			buffers[name] = true
		}
	}
	return buffers
}

// Checker is a model that can say what is wrong with a batch, such as tokens outside of its vocabulary. Each step
// asks it before it begins.
type Checker interface {
	CheckBatch(inputs, targets *tensors.Tensor) error
}

// CheckBatch asks a model what is wrong with a batch, if it is a [Checker].
func CheckBatch(m Model, inputs, targets *tensors.Tensor) error {
	if checker, ok := m.(Checker); ok && inputs != nil && targets != nil { // or that is what is wrong
		return checker.CheckBatch(inputs, targets)
	}
	return nil
}

// Multiplier is a model that can compute its products in ways of their own. Its products must be those of
// Recipe.Precision.
type Multiplier interface {
	Products() precision.Matmul
}

// Replicas says how devices that hold the same parameters and different rows of the batch share a step. Its methods
// build graphs.
type Replicas interface {
	// Mean returns the means over the devices of the nodes, each on its own.
	Mean(nodes []*graph.Node) []*graph.Node
	// Rank returns the place of the device among the others, an int32 scalar; it has the Rank-th part of the rows.
	Rank(g *graph.Graph) *graph.Node
}

// Recipe is one training step.
type Recipe struct {
	Model     Model
	Optimizer optim.Optimizer

	// Precision says in which types parameters are kept and the model computes, and how the loss is scaled. The zero
	// value is float32 throughout.
	Precision precision.Policy
	// Clip is the largest norm of all gradients together; larger ones are scaled down to it. 0 is no limit.
	Clip float64
	// Seed chooses the noise of a [Noisy] model and of stochastic rounding.
	Seed uint32
	// Replicas is nil where the whole batch is on one device.
	Replicas Replicas
}

// Validate returns an error that says what is not valid, with its value and what to do.
func (r Recipe) Validate() error {
	if r.Model == nil || r.Optimizer == nil {
		return errors.New("train: the recipe has no model or no optimizer: set Recipe.Model and Recipe.Optimizer")
	}
	if err := r.Model.Validate(); err != nil { // or there may be no parameters to look at
		return err
	}
	if len(r.Model.Params()) == 0 {
		return fmt.Errorf("train: the model, of type %T, has no parameters, and so nothing to train: give it some", r.Model)
	}
	if err := errors.Join(r.Model.Params().Validate(), r.Optimizer.Validate(), r.Policy().Validate()); err != nil {
		return err
	}
	if r.Clip != 0 && !(r.Clip >= 0x1p-126 && r.Clip < math.Inf(1)) {
		return fmt.Errorf("train: Recipe.Clip is %g: set it to the largest norm of the gradients, at least 2⁻¹²⁶, "+
			"or to 0 for none", r.Clip)
	}
	var products precision.Matmul
	if m, ok := r.Model.(Multiplier); ok {
		products = m.Products()
	}
	if want := r.Precision.Matmul; want != products {
		return fmt.Errorf("train: Recipe.Precision computes products as %+v, the model as %+v: "+
			"give the model the policy's (gpt.Config.Matmul)", want, products)
	}
	return nil
}

// NeedsAllGradients says whether an update asks something of all gradients, as clipping and loss scaling do: then it cannot begin
// before all are there.
func (r Recipe) NeedsAllGradients() bool { return r.Clip > 0 || len(r.Policy().Scaling.States()) > 0 }

// Policy is the precision, with the zero value made plain: float32 throughout.
func (r Recipe) Policy() precision.Policy {
	if r.Precision == (precision.Policy{}) {
		const f32 = dtypes.Float32
		return precision.Policy{Params: f32, Compute: f32, Output: f32, Reduce: f32}
	}
	return r.Precision
}

// GroupedOptimizer is the optimizer of the weights, with the update that [Buffered] models have for their buffers.
func (r Recipe) GroupedOptimizer() optim.Optimizer {
	buffers := Buffers(r.Model)
	if len(buffers) == 0 {
		return r.Optimizer
	}
	is := func(s params.Spec) bool { return buffers[s.Name] }
	return optim.Grouped(r.Optimizer, optim.Group{Has: is, Optimizer: optim.SGD(1)}) // old − (old − new)
}

// State lists everything that a run keeps between steps: the parameters, in the type that the precision keeps them in,
// the optimizer's states, the states of the loss scaling, and the counters "train.steps", of batches, and
// "train.updates", of updates made of them.
func (r Recipe) State() params.Tree { return r.parts().all() }

// parts are the parts of a state, in their order.
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

// cut gives each part its values of a state in order.
func cut[T any](p parts, values []T) (weights, optimizer, scaling, counters []T) {
	next := func(t params.Tree) []T {
		part := values[:len(t):len(t)]
		values = values[len(t):]
		return part
	}
	return next(p.params), next(p.optimizer), next(p.scaling), next(p.counters)
}

// Tail cuts the states of the loss scaling and the counters off the end of a state in the order of [Recipe.State], or
// of a part of one that ends with them. The values may be anything that there is one of for each entry.
func Tail[T any](r Recipe, state []T) (before, scaling, counters []T) {
	end := len(state) - len(counterSpecs)
	begin := end - len(r.Policy().Scaling.States())
	return state[:begin:begin], state[begin:end:end], state[end:]
}

// Initial returns the values of [Recipe.State] before the first step. An invalid model is an error.
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
