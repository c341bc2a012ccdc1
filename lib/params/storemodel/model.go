// Package storemodel makes a parameter tree of a GoMLX model: of a function that finds its weights as variables of a
// [model.Store], the way models are written with GoMLX's layers.
//
//	m, err := storemodel.New(backend, store, loss, inputs, targets)
//	…                      // train m
//	err = m.Write(values)  // and go on with GoMLX
//
// A [Model] trains in every layout of lib/parallel but those that cut layers or sequences, and pipelines: as its loss
// is one function, it is one block. A model that is given as a list of layers is a chain of blocks, and trains in
// pipelines, too:
//
//	layers := storemodel.Layers{{Name: "body", Build: body}, {Name: "head", Build: head}}
//	m, err := storemodel.NewChain(backend, store, layers, criterion, inputs, targets)
//
// What GoMLX's layers do besides computing an output works as with GoMLX's trainer, with these differences:
//
//   - Dropout, and whatever else takes random numbers from the scope, has other noise at each step, for each
//     micro-batch and on each device that has other rows. GoMLX's generator makes the numbers of a whole array at
//     once, so noise depends on which rows a device computes at once: two layouts have the same noise where both deal
//     the batch alike, such as two devices, and one device with two micro-batches. Each layer of a chain has noise of
//     its own.
//   - Variables that are not trainable are parameters, too, which train.Buffered calls buffers: those that a step
//     changes, as batch normalization changes its averages, get the mean of what the micro-batches and devices make of
//     them, and the others stay as they are. As in PyTorch's DistributedDataParallel, each micro-batch on each device
//     is normalized by its own mean and variance.
//   - Regularizers are part of the loss. GoMLX's L1 is refused, since it also sets small weights to 0 after each step.
//   - [Model.Loss], with which a trainer evaluates, is GoMLX's inference: without dropout, and normalized by the
//     averages.
//
// With ddp.NewAuto, where the compiler cuts a step for one device, noise and normalization are those of the whole
// batch.
//
// Each time a graph is built, the function runs on a store of its own, in which the variables of the graph are the
// given nodes. So one model can be built into many graphs, of other batch sizes, on other devices or backends, on a
// mesh, and by several goroutines at once, and no graph sees anything of another.
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

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/params"
)

// Loss builds a model and returns its mean loss over a batch, a scalar. Like any GoMLX model it takes its variables
// from the scope, and panics on errors. It must build the same model each time, and must not change what it shares
// with other goroutines if the model is built by several.
type Loss func(scope *model.Scope, inputs, targets *graph.Node) *graph.Node

// Model is a GoMLX model as named parameters, their initial values and a loss as a graph function of them: a
// train.Noisy, train.Buffered and chain.Chained. Make it with [New] or [NewChain]. Its methods may be called by several
// goroutines at once, but not while the store is used in another way.
type Model struct {
	store  *model.Store
	pieces []*piece
	chain  chain.Model // a block for each piece

	variables []variable // those of the parameters, in the order of the chain's list

	// type of the loss where no parameter is cast.
	lossType dtypes.DType
	// carries says that pieces give each other a column more than their outputs: what they add to the loss.
	carries bool

	mu sync.RWMutex // between Write and those who read the variables' values
}

// piece is a part of a model that is built by itself.
type piece struct {
	name  string
	site  uint32 // of its noise
	build func(scope *model.Scope, x, targets *graph.Node) *graph.Node
	in    shapes.Shape // of the x that it was first built for

	variables []variable // those of its parameters, in the order of their first use
	tree      params.Tree
	fixed     []variable // what it only reads, and is no float
	store     []variable // these, and what no piece uses: what it finds in a store

	random  bool         // it takes random numbers
	changed bool         // it changes variables
	penalty dtypes.DType // of what its regularizers add to the loss, if they do

	// makesAll says that it can be built on an empty store: it makes all variables that it uses.
	makesAll bool
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
// The parameters are the variables that the loss uses, in the order of their first use. A parameter's name is its
// variable's path: "block0.dense.weights" for "/block0/dense/weights". Variables of other types than floats, which
// must not be trainable, become constants of the graphs.
//
// A model that changes a trainable variable, or one that is no float, while it trains is an error that names the
// variable. So is one that relies on GoMLX's trainer for more than regularizers. Other errors are: a loss that panics
// or is no float scalar, no trainable variables or one that is not of a float type, and two variables of one name
// ("/a/b" and "/a.b"). After an error, the store may have variables that it had not before.
func New(backend compute.Backend, store *model.Store, loss Loss, inputs, targets shapes.Shape) (*Model, error) {
	if loss == nil {
		return nil, errors.New("storemodel: the loss is nil: give one")
	}
	return newModel(backend, store, []*piece{{name: "model", build: loss}}, inputs, targets)
}

func newModel(backend compute.Backend, store *model.Store, pieces []*piece,
	inputs, targets shapes.Shape) (*Model, error) {
	if backend == nil || store == nil {
		return nil, errors.New("storemodel: the backend or the store is nil: give both")
	}
	if store.VariablesAsConst() {
		return nil, errors.New("storemodel: the store makes its variables constants: set WithVariableAsConst(false)")
	}
	m := &Model{store: store, pieces: pieces}
	shape := inputs
	for i, p := range pieces {
		p.site, p.in = uint32(i), shape
		if err := scratch(backend, []shapes.Shape{shape, targets}, func(in []*graph.Node) error {
			y, err := m.discover(p, in[0], in[1])
			if err == nil {
				shape = y.Shape()
			}
			return err
		}); err != nil {
			return nil, fmt.Errorf("storemodel: building %s: %w", p.what(), err)
		}
	}
	users := map[string]bool{randomState: true} // which a store makes itself
	for _, p := range pieces {
		p.store = slices.Concat(p.variables, p.fixed)
		for _, v := range p.store {
			users[v.path] = true
		}
	}
	count := 0
	for v := range store.IterVariables() {
		count++
		if !users[v.Path()] {
			for _, p := range pieces {
				p.store = append(p.store, variable{v.Path(), v.Shape(), v.Trainable})
			}
		}
	}
	if err := m.link(count); err != nil {
		return nil, err
	}
	if err := try(func() error { return store.InitializeVariables(backend, nil) }); err != nil {
		return nil, fmt.Errorf("storemodel: initializing the variables: %w", err)
	}
	if err := m.Validate(); err != nil {
		return nil, err
	}
	for _, p := range pieces {
		if err := m.buildAgain(backend, p, targets, false); err != nil {
			return nil, fmt.Errorf("storemodel: building %s again: %w", p.what(), err)
		}
		p.makesAll = m.buildAgain(backend, p, targets, true) == nil
	}
	return m, nil
}

// what says in errors what is built.
func (p *piece) what() string {
	if p.in.Ok() && p.name != "model" {
		return fmt.Sprintf("layer %q for an input of shape %s", p.name, p.in)
	}
	return "the loss"
}

// discover builds a piece on the store itself, and lists the variables that it uses.
func (m *Model) discover(p *piece, x, targets *graph.Node) (*graph.Node, error) {
	g := x.Graph()
	model.SetStore(g, m.store)
	m.store.SetTraining(g, true)
	y := p.build(m.store.RootScope(), x, targets)
	if err := errors.Join(m.checkOutput(p, y), checkTrainer(g, m.store)); err != nil {
		return nil, err
	}
	if m.last(p) {
		m.lossType = y.DType()
	}
	if added := penalty(g); added != nil {
		p.penalty = added.DType()
	}
	var used []*model.Variable
	for v := range m.store.IterVariables() {
		if !v.InUseByGraph(g) {
			continue
		}
		if v.Path() == randomState {
			p.random = true
			continue
		}
		if v.ChangedInGraph(g) {
			if v.Trainable || !v.DType().IsFloat() {
				return nil, changes(v)
			}
			p.changed = true
		}
		used = append(used, v)
	}
	handle := func(v *model.Variable) int { return int(g.GetParameterByName(v.Path()).GetParameterHandle()) }
	slices.SortFunc(used, func(a, b *model.Variable) int { return handle(a) - handle(b) })
	for _, v := range used {
		as := variable{v.Path(), v.Shape(), v.Trainable}
		if !v.Trainable && !v.DType().IsFloat() {
			p.fixed = append(p.fixed, as)
			continue
		}
		p.variables = append(p.variables, as)
		p.tree = append(p.tree, params.Spec{Name: as.name(), Shape: as.shape})
	}
	return y, nil
}

func (m *Model) last(p *piece) bool { return p == m.pieces[len(m.pieces)-1] }

// link makes the chain. It returns an error if the variables make no tree, or nothing is to be trained.
func (m *Model) link(inStore int) error {
	m.chain = chain.Model{Initial: m.Init, Noisy: true}
	byName, trained := map[string]variable{}, 0
	for _, p := range m.pieces {
		for _, v := range p.variables {
			other, seen := byName[v.name()]
			switch {
			case !v.shape.DType.IsFloat():
				return fmt.Errorf("storemodel: the trainable variable %q has element type %s, which has no gradient: "+
					"call its SetTrainable(false)", v.path, v.shape.DType)
			case seen && other.path != v.path:
				return fmt.Errorf("storemodel: the variables %q and %q would both be named %q: rename one",
					other.path, v.path, v.name())
			case seen:
				continue
			}
			byName[v.name()] = v
			m.variables = append(m.variables, v)
			if v.trainable {
				trained++
			} else {
				m.chain.Buffers = append(m.chain.Buffers, v.name())
			}
		}
		b := chain.Block{Name: p.name, Params: p.tree}
		if m.last(p) {
			b.Loss = func(nodes params.Nodes, x, targets, key, row *graph.Node) *graph.Node {
				return m.rebuild(p, nodes, x, targets, key, row)
			}
		} else {
			m.carries = m.carries || p.changed || p.penalty != dtypes.InvalidDType
			b.Apply = func(nodes params.Nodes, x, key, row *graph.Node) *graph.Node {
				return m.rebuild(p, nodes, x, nil, key, row)
			}
		}
		m.chain.Blocks = append(m.chain.Blocks, b)
	}
	for i, p := range m.pieces {
		if m.carries && i > 0 && (p.in.Rank() == 0 || !p.in.DType.IsFloat()) {
			return fmt.Errorf("storemodel: layer %q returns %s, and layers change variables or have regularizers: "+
				"return floats, with an axis for the rows", m.pieces[i-1].name, p.in)
		}
	}
	if trained == 0 {
		return fmt.Errorf("storemodel: the loss uses no trainable variables, of the %d in the store: there is nothing to "+
			"train", inStore)
	}
	return m.chain.Validate()
}

// buildAgain builds a piece as it will be built to train, in a graph that is never run.
func (m *Model) buildAgain(backend compute.Backend, p *piece, targets shapes.Shape, empty bool) error {
	x := p.in
	if m.carries && p.site > 0 {
		x = shapes.Make(x.DType, x.Dim(0), x.Size()/x.Dim(0)+1)
	}
	in := []shapes.Shape{x, targets, number, number}
	for _, v := range p.variables {
		in = append(in, v.shape)
	}
	return scratch(backend, in, func(in []*graph.Node) error {
		m.built(p, in[4:], in[0], in[1], in[2], in[3], empty)
		return nil
	})
}

// number is the shape of a key and of a row.
var number = shapes.Make(dtypes.Uint32)

// Params returns the parameters, of which [Model.BufferNames] are not trained.
func (m *Model) Params() params.Tree { return m.chain.Params() }

// BufferNames returns the names of the parameters whose variables are not trainable. It implements train.Buffered.
func (m *Model) BufferNames() []string { return m.chain.Buffers }

// Chain returns the model as a chain of blocks: one for each layer of [NewChain], else one.
func (m *Model) Chain() (chain.Model, error) { return m.chain, nil }

// scratch calls a function with parameters of a graph that is never run. Panics become errors.
func scratch(backend compute.Backend, in []shapes.Shape, build func(in []*graph.Node) error) error {
	return try(func() error {
		g := graph.NewGraph(backend, "storemodel")
		defer g.Finalize()
		nodes := make([]*graph.Node, len(in))
		for i, shape := range in {
			nodes[i] = graph.Parameter(g, fmt.Sprint("input #", i), shape)
		}
		return build(nodes)
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
