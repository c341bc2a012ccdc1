package storemodel

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/ml/model"

	"github.com/shardbook/shardbook/lib/noise"
	"github.com/shardbook/shardbook/lib/params"
)

// Loss is [Model.NoisyLoss] without a key.
func (m *Model) Loss(p params.Nodes, inputs, targets *graph.Node) *graph.Node {
	return m.chain.Loss(p, inputs, targets)
}

// NoisyLoss builds the loss with the given nodes in the place of the parameters. With a key, the graph is one for
// training ([model.Store.SetTraining]), whose random numbers follow from the key and the row, which are those of
// train.Noisy, and the gradients of buffers are their changes, as train.Buffered says. Without, it is one for
// inference, whose random numbers, if it takes any, are always the same. The batch may have another size than in
// [New], but the model must make the same variables of it.
//
// Parameters may come in another float type than their variables have, usually in half precision. If all of one type
// come in the same other type, constants and inputs of it are converted alike, so that layers that follow their
// input's type compute in the other; variables that a layer asks for in their own type all the same come in that.
// Targets stay as they are: a loss that compares floats converts the model's output to their type itself, and so
// computes in float32, as it should (Micikevicius et al. 2018, "Mixed Precision Training", §3). The result has the
// type that it has where nothing is cast. Layers that change variables must do so in float32: batch normalization of a
// half type needs its input converted to float32, and its output back.
//
// It panics if a parameter is missing or has other dimensions than its variable; if the model panics, changes a
// variable that [New] refuses it to, or uses one that it did not use in New; and in a graph of a [model.Exec], which
// would take the nodes for new values of its own variables.
func (m *Model) NoisyLoss(p params.Nodes, inputs, targets, key, row *graph.Node) *graph.Node {
	return m.chain.NoisyLoss(p, inputs, targets, key, row)
}

// rebuild builds a piece with nodes in the place of its parameters.
func (m *Model) rebuild(p *piece, nodes params.Nodes, x, targets, key, row *graph.Node) *graph.Node {
	weights, err := nodes.List(p.tree)
	if err != nil {
		panic(fmt.Errorf("storemodel: %w", err))
	}
	cast := false
	for i, spec := range p.tree {
		w := weights[i]
		if w == nil || !slices.Equal(w.Shape().Dimensions, spec.Shape.Dimensions) || !w.DType().IsFloat() {
			panic(fmt.Errorf("storemodel: the node for %s is %s: want a float of the same dimensions", spec, w))
		}
		cast = cast || w.DType() != spec.Shape.DType
	}
	// Variables in a store have a type, and a layer that asks for another panics. In an empty store each layer makes
	// what it asks for.
	return m.built(p, weights, x, targets, key, row, cast && p.makesAll)
}

// built is a piece built on a store of its own, that is either empty at first or has all variables.
func (m *Model) built(p *piece, weights []*graph.Node, x, targets, key, row *graph.Node, empty bool) *graph.Node {
	g := x.Graph()
	if model.GetStore(g) != nil {
		panic(fmt.Errorf("storemodel: the graph %q belongs to a model.Exec: build the loss in a graph.Exec", g.Name()))
	}
	b := builder{m: m, p: p, g: g, weights: weights, key: key, row: row, to: casts(p.tree, weights),
		asked: map[string]dtypes.DType{}}
	var carried []*graph.Node
	if m.carries && p.site > 0 {
		var before *graph.Node
		x, before = unpack(x, p.in)
		carried = append(carried, before)
	}
	x = convert(x, b.to)
	y, added, err := b.build(x, targets, empty)
	for err != nil && b.panicked && b.retype() {
		y, added, err = b.build(x, targets, empty)
	}
	if err != nil {
		panic(fmt.Errorf("storemodel: %w", err))
	}
	carried = append(carried, added...)
	if !m.last(p) {
		if m.carries {
			y = pack(y, carried)
		}
		return y
	}
	for _, term := range carried {
		y = graph.Add(y, graph.ConvertDType(term, y.DType()))
	}
	return graph.ConvertDType(y, m.lossType)
}

// builder builds a piece in a graph.
type builder struct {
	m        *Model
	p        *piece
	g        *graph.Graph
	weights  []*graph.Node
	key, row *graph.Node
	to       map[dtypes.DType]dtypes.DType
	// asked are the types of variables, by path, that layers ask for in another than they come in.
	asked map[string]dtypes.DType

	store    *model.Store // of the last try
	used     *standIns
	panicked bool // the model itself
}

// build returns the output, and scalars to be added to the loss. Panics are errors.
func (b *builder) build(x, targets *graph.Node, empty bool) (y *graph.Node, added []*graph.Node, err error) {
	err = try(func() error {
		var missing lookups
		b.store, missing = b.m.newStore()
		b.panicked = false
		if err := b.standIn(); err != nil {
			return err
		}
		if !empty {
			for _, v := range b.p.store {
				shape := v.shape.Clone()
				if node := b.used.nodes[v.path]; node != nil {
					shape.DType = node.DType()
				}
				b.store.VariableWithShape(v.path, shape, nil).SetTrainable(v.trainable)
			}
		}
		was := b.store.IsTraining(b.g) // which is a property of the graph
		model.SetStore(b.g, b.store)
		b.store.SetTraining(b.g, b.key != nil)
		defer func() {
			model.SetStore(b.g, nil)
			b.store.SetTraining(b.g, was)
		}()
		before := penalty(b.g)
		if b.p.penalty != dtypes.InvalidDType { // regularizers add to what they find
			before = convert(graph.ScalarZero(b.g, b.p.penalty), b.to)
			model.SetGraphParam(b.g, penaltyPath, before)
		}
		b.panicked = true
		y = b.p.build(b.store.RootScope(), x, targets)
		b.panicked = false
		if all := penalty(b.g); all != before {
			if b.p.penalty == dtypes.InvalidDType {
				return errors.New("the model has a regularizer for this batch, which it did not have when it was first " +
					"built: call New with a batch for which it has all its regularizers")
			}
			added = append(added, all)
		}
		for _, check := range []error{
			b.m.checkOutput(b.p, y), checkTrainer(b.g, b.store), b.used.check(b.store), b.p.checkMade(b.store, missing),
		} {
			if check != nil {
				return check
			}
		}
		if b.key == nil {
			return nil // what inference changes is of no use
		}
		changes, err := b.changes()
		added = append(added, changes...)
		return err
	})
	return y, added, err
}

// standIn puts nodes in the place of the variables.
func (b *builder) standIn() error {
	constants, err := b.m.values(b.p.fixed)
	if err != nil {
		return err
	}
	b.used = newStandIns(b.g)
	for i, v := range b.p.variables {
		node := b.weights[i]
		if !v.trainable {
			node = graph.StopGradient(node)
		}
		if asked, ok := b.asked[v.path]; ok {
			node = graph.ConvertDType(node, asked)
		}
		b.used.add(v.path, node)
	}
	for i, v := range b.p.fixed {
		b.used.add(v.path, graph.ConstTensor(b.g, constants[i]))
	}
	if b.p.random {
		b.used.add(randomState, b.state())
	}
	return nil
}

// state is what random numbers are made of: 192 bits that follow from the key, the row and the piece.
func (b *builder) state() *graph.Node {
	key, row := b.key, b.row
	if key == nil {
		key, row = graph.Const(b.g, uint32(0)), graph.Const(b.g, uint32(0))
	}
	seed := noise.Bits(key, b.p.site, row)
	return graph.Bitcast(noise.Bits(seed, 0, nil, 3, 2), dtypes.Uint64)
}

// changes are scalars that are zero, and of which the gradient by a buffer is its old value less its new one.
func (b *builder) changes() (terms []*graph.Node, err error) {
	for i, v := range b.p.variables {
		old := b.used.nodes[v.path]
		changed := b.used.now(v.path)
		if changed == old {
			continue
		}
		switch {
		case v.trainable:
			return nil, changes(b.store.GetVariable(v.path))
		case !changed.Shape().Equal(old.Shape()):
			return nil, fmt.Errorf("the model changes the variable %q from %s to %s: keep its shape", v.path, old.Shape(),
				changed.Shape())
		case old.DType().IsHalfPrecision():
			return nil, fmt.Errorf("the model changes the variable %q in %s, which would round small changes away: "+
				"convert the layer's input to float32, and its output back, or compute in float32", v.path, old.DType())
		}
		w := b.weights[i]
		change := graph.ConvertDType(graph.StopGradient(graph.Sub(old, changed)), w.DType())
		terms = append(terms, graph.ReduceAllSum(graph.Mul(change, graph.Sub(w, graph.StopGradient(w)))))
	}
	return terms, nil
}

// retype notes in which type layers have asked for variables, where that is not the type of the nodes, and reports
// whether that is new.
func (b *builder) retype() (again bool) {
	for v := range b.store.IterVariables() {
		node, ok := b.used.nodes[v.Path()]
		if _, known := b.asked[v.Path()]; ok && !known && v.DType().IsFloat() && v.DType() != node.DType() {
			b.asked[v.Path()], again = v.DType(), true
		}
	}
	return again
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

// pack adds a column to an output of a layer, as a matrix: scalars to be added to the loss.
func pack(y *graph.Node, terms []*graph.Node) *graph.Node {
	rows, sum := y.Shape().Dim(0), graph.ScalarZero(y.Graph(), y.DType())
	for _, term := range terms {
		sum = graph.Add(sum, graph.ConvertDType(term, y.DType()))
	}
	column := graph.BroadcastToDims(graph.Reshape(sum, 1, 1), rows, 1)
	return graph.Concatenate([]*graph.Node{graph.Reshape(y, rows, y.Shape().Size()/rows), column}, 1)
}

// unpack undoes pack: it returns what a layer takes, of the shape that it was first built for but for the rows, and the
// sum of the scalars. (That of the first row: its gradient is then exactly that of the loss.)
func unpack(x *graph.Node, in shapes.Shape) (y, sum *graph.Node) {
	rows, last := x.Shape().Dim(0), x.Shape().Dim(1)-1
	dims := append([]int{rows}, in.Dimensions[1:]...)
	sum = graph.Reshape(graph.Slice(x, graph.AxisElem(0), graph.AxisElem(last)))
	return graph.Reshape(graph.Slice(x, graph.AxisRange(), graph.AxisRange(0, last)), dims...), sum
}
