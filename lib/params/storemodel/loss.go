package storemodel

import (
	"fmt"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/ml/model"

	"github.com/shardbook/shardbook/lib/params"
)

// Loss builds the loss with the given nodes in the place of the parameters. Variables that are not trainable are
// constants, of the values that they have in the store now. The batch may have another size than in [New], but the model
// must make the same variables of it.
//
// Parameters may come in another float type than their variables have, usually in half precision. If all of one type
// come in the same other type, constants and inputs of it are converted alike, so that layers that follow their input's
// type compute in the other. Targets stay as they are: a loss that compares floats converts the model's output to their
// type itself, and so computes in float32, as it should (Micikevicius et al. 2018, "Mixed Precision Training", §3). The
// result has the type that it has where nothing is cast.
//
// It panics if a parameter is missing or has other dimensions than its variable; if the model panics, changes a variable,
// or uses one that it did not use in [New]; and in a graph of a [model.Exec], which would take the nodes for new values
// of its own variables.
func (m *Model) Loss(p params.Nodes, inputs, targets *graph.Node) *graph.Node {
	weights, err := p.List(m.tree)
	if err != nil {
		panic(fmt.Errorf("storemodel: %w", err))
	}
	cast := false
	for i, spec := range m.tree {
		w := weights[i]
		if w == nil || !slices.Equal(w.Shape().Dimensions, spec.Shape.Dimensions) || !w.DType().IsFloat() {
			panic(fmt.Errorf("storemodel: the node for %s is %s: want a float of the same dimensions", spec, w))
		}
		cast = cast || w.DType() != spec.Shape.DType
	}
	// Variables in a store have a type, and a layer that asks for another panics. In an empty store each layer makes
	// what it asks for.
	return m.rebuild(weights, inputs, targets, cast && m.makesAll)
}

// rebuild builds the loss on a store of its own, that is either empty at first or has all variables.
func (m *Model) rebuild(weights []*graph.Node, inputs, targets *graph.Node, empty bool) *graph.Node {
	g := inputs.Graph()
	if model.GetStore(g) != nil {
		panic(fmt.Errorf("storemodel: the graph %q belongs to a model.Exec: build the loss in a graph.Exec", g.Name()))
	}
	constants, err := m.values(m.fixed)
	if err != nil {
		panic(err)
	}
	to := casts(m.tree, weights)
	used := newStandIns(g)
	for i, v := range m.trained {
		used.add(v.path, weights[i])
	}
	for i, v := range m.fixed {
		used.add(v.path, convert(graph.ConstTensor(g, constants[i]), to))
	}
	store, asked := m.newStore()
	if !empty {
		for _, v := range m.all {
			shape := v.shape.Clone()
			if node := used.nodes[v.path]; node != nil {
				shape.DType = node.DType()
			}
			store.VariableWithShape(v.path, shape, nil).SetTrainable(v.trainable)
		}
	}

	was := store.IsTraining(g) // which is a property of the graph
	model.SetStore(g, store)
	store.SetTraining(g, true)
	defer func() {
		model.SetStore(g, nil)
		store.SetTraining(g, was)
	}()
	loss := m.loss(store.RootScope(), convert(inputs, to), targets)
	for _, check := range []error{
		checkLoss(loss), checkTrainer(g, store), used.check(store), m.checkAsked(store, asked),
	} {
		if check != nil {
			panic(fmt.Errorf("storemodel: %w", check))
		}
	}
	return graph.ConvertDType(loss, m.lossType)
}

// newStore returns a store with the hyperparameters of the model's, and what will be the paths of variables that were
// looked for in it and not found.
func (m *Model) newStore() (*model.Store, lookups) {
	store, asked := model.NewStore(), lookups{}
	for path, value := range m.store.IterParams() {
		store.SetParam(path, value)
	}
	store.SetLoader(asked)
	return store, asked
}

// casts returns the type that the parameters of each type come in, if that is one type for all of them.
func casts(tree params.Tree, weights []*graph.Node) map[dtypes.DType]dtypes.DType {
	to := map[dtypes.DType]dtypes.DType{}
	for i, spec := range tree {
		own, given := spec.Shape.DType, weights[i].DType()
		if other, ok := to[own]; ok && other != given {
			given = own
		}
		to[own] = given
	}
	return to
}

// convert returns x in the type that its type is cast to.
func convert(x *graph.Node, to map[dtypes.DType]dtypes.DType) *graph.Node {
	if other, ok := to[x.DType()]; ok {
		return graph.ConvertDType(x, other)
	}
	return x
}
