// Package storemodel makes a parameter tree of a GoMLX model: of a function that finds its weights as variables of a
// [model.Store], the way models are written with GoMLX's layers.
//
//	m, err := storemodel.New(backend, store, loss, inputs, targets)
//	…                      // train m
//	err = m.Write(values)  // and go on with GoMLX
//
// A [Model] is what train.New, ddp.NewSPMD and ddp.NewAuto train. As its loss is one function, it is one block to
// those that drive a model block by block: lib/zero, lib/parallel and the ranks of lib/ddp train it, and a pipeline
// has one stage.
//
// Each time a graph is built, the function runs on a store of its own, in which the variables of the graph are the
// given nodes. So one model can be built into many graphs, of other batch sizes, on other devices or backends, on a mesh,
// and by several goroutines at once, and no graph sees anything of another.
package storemodel

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/ml/model"

	"github.com/shardbook/shardbook/lib/params"
)

// Loss builds a model and returns its mean loss over a batch, a scalar. Like any GoMLX model it takes its variables from
// the scope, and panics on errors. It must build the same model each time, and must not change what it shares with
// other goroutines if the model is built by several.
type Loss func(scope *model.Scope, inputs, targets *graph.Node) *graph.Node

// Model is a GoMLX model as named parameters, their initial values and a loss as a graph function of them. Make it with
// [New]. Its methods may be called by several goroutines at once, but not while the store is used in another way.
type Model struct {
	store *model.Store
	loss  Loss
	tree  params.Tree

	trained []variable // the tree's entries, in its order
	fixed   []variable // what the loss only reads
	all     []variable // what the store has, whether the loss uses it or not

	// type of the loss where no parameter is cast.
	lossType dtypes.DType
	// makesAll says that the loss can be built on an empty store: it makes all variables that it uses.
	makesAll bool

	mu sync.RWMutex // between Write and those who read the variables' values
}

// variable is a variable as it was in the store when the model was made.
type variable struct {
	path      string // "/block0/dense/weights"
	shape     shapes.Shape
	trainable bool
}

// name is the path with dots between its parts, and none at the start.
func (v variable) name() string {
	return strings.ReplaceAll(strings.TrimPrefix(v.path, model.ScopeSeparator), model.ScopeSeparator, ".")
}

// New builds the loss once for inputs and targets of the given shapes, so that its variables come to be in the store,
// and initializes on the backend those that have no value, exactly as a [model.Exec] would. (It does not run the loss.)
//
// The parameters are the trainable variables that the loss uses, in the order of their first use. A parameter's name is
// its variable's path: "block0.dense.weights" for "/block0/dense/weights".
//
// Variables that are not trainable become constants of the graphs. The graph is built for training
// ([model.Store.SetTraining]), and a loss has no way to hand on the new value of a variable. So a model that changes
// variables while it trains is an error that names the variable: batch normalization unless its averages are frozen, and
// dropout, which changes the state of the random numbers. So is a model that relies on GoMLX's trainer: regularizers
// add their loss there.
//
// Other errors are: a loss that panics or is no float scalar, no trainable variables or one that is not of a float type,
// and two variables of one name ("/a/b" and "/a.b"). After an error, the store may have variables that it had not before.
func New(backend compute.Backend, store *model.Store, loss Loss, inputs, targets shapes.Shape) (*Model, error) {
	if backend == nil || store == nil || loss == nil {
		return nil, errors.New("storemodel: the backend, the store or the loss is nil: give all three")
	}
	if store.VariablesAsConst() {
		return nil, errors.New("storemodel: the store makes its variables constants: set WithVariableAsConst(false)")
	}
	m := &Model{store: store, loss: loss}
	if err := scratch(backend, inputs, targets, m.discover); err != nil {
		return nil, fmt.Errorf("storemodel: building the loss: %w", err)
	}
	if err := m.checkTree(); err != nil {
		return nil, err
	}
	if err := try(func() error { return store.InitializeVariables(backend, nil) }); err != nil {
		return nil, fmt.Errorf("storemodel: initializing the variables: %w", err)
	}
	if err := m.Validate(); err != nil {
		return nil, err
	}
	again := func(empty bool) error {
		return scratch(backend, inputs, targets, func(inputs, targets *graph.Node) error {
			weights := make([]*graph.Node, len(m.trained))
			for i, v := range m.trained {
				weights[i] = graph.Parameter(inputs.Graph(), v.path, v.shape)
			}
			m.rebuild(weights, inputs, targets, empty)
			return nil
		})
	}
	if err := again(false); err != nil {
		return nil, fmt.Errorf("storemodel: building the loss again: %w", err)
	}
	m.makesAll = again(true) == nil
	return m, nil
}

// discover builds the loss on the store itself, and lists the variables that it uses.
func (m *Model) discover(inputs, targets *graph.Node) error {
	g := inputs.Graph()
	model.SetStore(g, m.store)
	m.store.SetTraining(g, true)
	loss := m.loss(m.store.RootScope(), inputs, targets)
	if err := errors.Join(checkLoss(loss), checkTrainer(g, m.store)); err != nil {
		return err
	}
	m.lossType = loss.DType()
	var used []*model.Variable
	for v := range m.store.IterVariables() {
		m.all = append(m.all, variable{v.Path(), v.Shape(), v.Trainable})
		if v.ChangedInGraph(g) {
			return changes(v.Path())
		}
		if v.InUseByGraph(g) {
			used = append(used, v)
		}
	}
	slices.SortFunc(used, func(a, b *model.Variable) int {
		return int(a.NodeValue(g).GetParameterHandle()) - int(b.NodeValue(g).GetParameterHandle())
	})
	for _, v := range used {
		as := variable{v.Path(), v.Shape(), v.Trainable}
		if !v.Trainable {
			m.fixed = append(m.fixed, as)
			continue
		}
		m.trained = append(m.trained, as)
		m.tree = append(m.tree, params.Spec{Name: as.name(), Shape: as.shape})
	}
	return nil
}

// checkTree returns an error if the trainable variables make no tree.
func (m *Model) checkTree() error {
	if len(m.trained) == 0 {
		return fmt.Errorf("storemodel: the loss uses no trainable variables, of the %d in the store: there is nothing to train",
			len(m.all))
	}
	paths := map[string]string{}
	for _, v := range m.trained {
		if other, ok := paths[v.name()]; ok {
			return fmt.Errorf("storemodel: the variables %q and %q would both be named %q: rename one", other, v.path, v.name())
		}
		paths[v.name()] = v.path
		if !v.shape.DType.IsFloat() {
			return fmt.Errorf("storemodel: the trainable variable %q has element type %s, which has no gradient: call its SetTrainable(false)",
				v.path, v.shape.DType)
		}
	}
	return m.tree.Validate()
}

// Params returns the parameters.
func (m *Model) Params() params.Tree { return slices.Clone(m.tree) }

// scratch calls a function with the inputs and targets of a graph that is never run. Panics become errors.
func scratch(backend compute.Backend, inputs, targets shapes.Shape, build func(inputs, targets *graph.Node) error) error {
	return try(func() error {
		g := graph.NewGraph(backend, "storemodel")
		defer g.Finalize()
		return build(graph.Parameter(g, "inputs", inputs), graph.Parameter(g, "targets", targets))
	})
}

// try calls a function, and makes an error of a panic.
func try(fn func() error) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case error:
			err = r
		default:
			err = fmt.Errorf("%v", r)
		}
	}()
	return fn()
}
