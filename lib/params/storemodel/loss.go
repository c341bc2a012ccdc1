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

// Loss is [Model.NoisyLoss] without a key: the loss for evaluation.
func (m *Model) Loss(p params.Nodes, inputs, targets *graph.Node) *graph.Node {
	return m.chain.Loss(p, inputs, targets)
}

// NoisyLoss builds the loss with the given nodes as parameters. With a key, it is for training
// ([model.Store.SetTraining]): random numbers depend on the key and the row, as train.Noisy says, and the gradients of
// buffers are their changes, as train.Buffered says. Without, it is for inference, and random numbers are always the
// same. The batch size may differ from that in [New], but the model must create the same variables.
//
// Parameters may have another float type than their variables, usually a half type. If all parameters of a type have
// the same other type, constants and inputs are converted to it too, so that layers which follow their input's type
// compute in it; a variable that a layer requests in its own type is converted back. Targets are not converted: a loss
// that compares floats converts the model's output to their type and so computes in float32, as it should (Micikevicius
// et al. 2018, "Mixed Precision Training", §3). The result has the loss's own type. Layers that change variables must
// compute in float32: for batch normalization in a half type, convert its input to float32 and its output back.
//
// It panics if a parameter is missing or has other dimensions than its variable; if the model panics, changes a
// variable that it must not change, or uses one that it did not use in New; and in a graph of a [model.Exec], which
// would take the nodes for new values of its own variables.
func (m *Model) NoisyLoss(p params.Nodes, inputs, targets, key, row *graph.Node) *graph.Node {
	return m.chain.NoisyLoss(p, inputs, targets, key, row)
}

// rebuild builds a piece with nodes as its parameters.
func (m *Model) rebuild(p *piece, nodes params.Nodes, x, targets, key, row *graph.Node) *graph.Node {
	weights, err := nodes.List(p.tree)
	if err != nil {
		panic(fmt.Errorf("storemodel: %w", err))
	}
	cast := false
	for i, spec := range p.tree {
		w := weights[i]
		if w == nil || !slices.Equal(w.Shape().Dimensions, spec.Shape.Dimensions) || !w.DType().IsFloat() {
			panic(fmt.Errorf("storemodel: the node for %s is %s: give a float with the same dimensions", spec, w))
		}
		cast = cast || w.DType() != spec.Shape.DType
	}
	// A layer that requests a variable in another type than the store has panics. In an empty store, layers create
	// their variables in the types that they request.
	return m.built(p, weights, x, targets, key, row, cast && p.createsAll)
}

// built builds a piece with a store of its own, which is empty or has all variables.
func (m *Model) built(p *piece, weights []*graph.Node, x, targets, key, row *graph.Node, empty bool) *graph.Node {
	g := x.Graph()
	if model.GetStore(g) != nil {
		panic(fmt.Errorf("storemodel: the graph %q belongs to a model.Exec: build the loss in a graph.Exec", g.Name()))
	}
	b := builder{m: m, p: p, g: g, weights: weights, key: key, row: row, to: casts(p.tree, weights),
		requested: map[string]dtypes.DType{}}
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
	// requested are the types of variables, by path, that layers request in another type than the node's.
	requested map[string]dtypes.DType

	store    *model.Store // of the last attempt
	used     *standIns
	panicked bool // whether the model itself panicked
}

// build returns the output, and scalars to add to the loss. Panics become errors.
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
		was := b.store.IsTraining(b.g) // a property of the graph
		model.SetStore(b.g, b.store)
		b.store.SetTraining(b.g, b.key != nil)
		defer func() {
			model.SetStore(b.g, nil)
			b.store.SetTraining(b.g, was)
		}()
		before := penalty(b.g)
		if b.p.penalty != dtypes.InvalidDType { // regularizers add to what is there
			before = convert(graph.ScalarZero(b.g, b.p.penalty), b.to)
			model.SetGraphParam(b.g, penaltyPath, before)
		}
		b.panicked = true
		y = b.p.build(b.store.RootScope(), x, targets)
		b.panicked = false
		if all := penalty(b.g); all != before {
			if b.p.penalty == dtypes.InvalidDType {
				return errors.New("the model has a regularizer for this batch that it did not have when it was first " +
					"built: call New with a batch for which it has all its regularizers")
			}
			added = append(added, all)
		}
		for _, check := range []error{
			b.m.checkOutput(b.p, y), checkTrainer(b.g, b.store), b.used.check(b.store),
			b.p.checkCreated(b.store, missing),
		} {
			if check != nil {
				return check
			}
		}
		if b.key == nil {
			return nil // changes in inference are ignored
		}
		changes, err := b.changes()
		added = append(added, changes...)
		return err
	})
	return y, added, err
}

// standIn sets the nodes of the variables.
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
		if dtype, ok := b.requested[v.path]; ok {
			node = graph.ConvertDType(node, dtype)
		}
		b.used.add(v.path, node)
	}
	for i, v := range b.p.fixed {
		b.used.add(v.path, graph.ConstTensor(b.g, constants[i]))
	}
	if b.p.random {
		b.used.add(randomState, b.seed())
	}
	return nil
}

// seed is GoMLX's random state, 192 bits that depend on the key, the row and the piece.
func (b *builder) seed() *graph.Node {
	key, row := b.key, b.row
	if key == nil {
		key, row = graph.Const(b.g, uint32(0)), graph.Const(b.g, uint32(0))
	}
	seed := noise.Bits(key, b.p.site, row)
	return graph.Bitcast(noise.Bits(seed, 0, nil, 3, 2), dtypes.Uint64)
}

// changes returns scalars that are zero, whose gradient by a buffer is its old value less its new one.
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
			return nil, fmt.Errorf("the model changes the variable %q from %s to %s: do not change its shape", v.path,
				old.Shape(), changed.Shape())
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

// retype notes in which types layers requested variables, if not in that of the node, and reports whether there are new
// ones.
func (b *builder) retype() (again bool) {
	for v := range b.store.IterVariables() {
		node, ok := b.used.nodes[v.Path()]
		if _, known := b.requested[v.Path()]; ok && !known && v.DType().IsFloat() && v.DType() != node.DType() {
			b.requested[v.Path()], again = v.DType(), true
		}
	}
	return again
}

// newStore returns a store with the hyperparameters of the model's, and the lookups that will fail in it.
func (m *Model) newStore() (*model.Store, lookups) {
	store, asked := model.NewStore(), lookups{}
	for path, value := range m.store.IterParams() {
		store.SetParam(path, value)
	}
	store.SetLoader(asked)
	return store, asked
}

// casts returns, for each type of parameters, the type of the nodes if all have the same.
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

// convert returns x in the type that casts has for its type.
func convert(x *graph.Node, to map[dtypes.DType]dtypes.DType) *graph.Node {
	if other, ok := to[x.DType()]; ok {
		return graph.ConvertDType(x, other)
	}
	return x
}

// pack adds a column, with the sum of scalars to add to the loss, to a layer's output as a matrix.
func pack(y *graph.Node, terms []*graph.Node) *graph.Node {
	rows, sum := y.Shape().Dim(0), graph.ScalarZero(y.Graph(), y.DType())
	for _, term := range terms {
		sum = graph.Add(sum, graph.ConvertDType(term, y.DType()))
	}
	column := graph.BroadcastToDims(graph.Reshape(sum, 1, 1), rows, 1)
	return graph.Concatenate([]*graph.Node{graph.Reshape(y, rows, y.Shape().Size()/rows), column}, 1)
}

// unpack is the inverse of pack: it returns the layer's input, of the shape that it was first built for except for the
// batch size, and the sum. (That of the first row: its gradient is then exactly that of the loss.)
func unpack(x *graph.Node, in shapes.Shape) (y, sum *graph.Node) {
	rows, last := x.Shape().Dim(0), x.Shape().Dim(1)-1
	dims := append([]int{rows}, in.Dimensions[1:]...)
	sum = graph.Reshape(graph.Slice(x, graph.AxisElem(0), graph.AxisElem(last)))
	return graph.Reshape(graph.Slice(x, graph.AxisRange(), graph.AxisRange(0, last)), dims...), sum
}
