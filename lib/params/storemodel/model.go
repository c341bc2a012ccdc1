// Package storemodel turns a GoMLX model, a function that finds its weights as variables of a [model.Store], into named
// parameters and a loss that is a function of them.
//
//	m, err := storemodel.New(backend, store, loss, inputs, targets)
//	…                      // train m
//	err = m.Write(values)  // and continue with GoMLX
//
// A [Model] trains in every layout of lib/parallel without tensor, sequence or pipeline parallelism, since its loss is
// one function and so one block. A model that is given as a list of layers is a chain of blocks, and trains in
// pipelines too:
//
//	layers := storemodel.Layers{{Name: "body", Build: body}, {Name: "head", Build: head}}
//	m, err := storemodel.NewChain(backend, store, layers, criterion, inputs, targets)
//
// GoMLX's layers work as with GoMLX's trainer, with these differences:
//
//   - Dropout, and other uses of random numbers from the scope, get different numbers at each step, for each micro-
//     batch and on each device with other examples. GoMLX's generator makes the numbers of a full array at once, so
//     they depend on which examples a device computes together: layouts have the same random numbers only if they split
//     the batch in the same way, such as two devices, and one device with two micro-batches. Each layer of a chain has
//     its own.
//   - Variables that are not trainable are parameters too, called buffers in train.Buffered. Buffers that a step
//     changes, such as the averages of batch normalization, get the mean over micro-batches and devices; others do not
//     change. As in PyTorch's DistributedDataParallel, each micro-batch on each device is normalized by its own
//     statistics.
//   - Regularizers are part of the loss. GoMLX's L1 is refused, since it also sets small weights to 0 after each step.
//   - [Model.Loss], for evaluation, is GoMLX's inference: without dropout, and normalized by the averages.
//
// With ddp.NewAuto, where the compiler splits a step for one device, random numbers and normalization are those of the
// full batch.
//
// Each time a graph is built, the function runs on a store of its own, in which the variables are the given nodes. So
// one model can be built into many graphs, with other batch sizes, on other devices or backends, on a mesh, and by
// several goroutines at once; the graphs do not affect each other.
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

// Loss builds a model and returns its mean loss over a batch, a scalar. Like any GoMLX model it finds its variables in
// the scope, and panics on errors. It must build the same model each time, and be safe for concurrent use if several
// goroutines build the model.
type Loss func(scope *model.Scope, inputs, targets *graph.Node) *graph.Node

// Model is a GoMLX model as named parameters, their initial values and a loss as a graph function: a train.Noisy,
// train.Buffered and chain.Chained. Make it with [New] or [NewChain]. Several goroutines may call its methods at once,
// but not while the store is used otherwise.
type Model struct {
	store  *model.Store
	pieces []*piece
	chain  chain.Model // a block for each piece

	variables []variable // of the parameters, in the order of the chain's list

	// lossType is the type of the loss if no parameter is cast.
	lossType dtypes.DType
	// carries says that pieces pass on another column besides their outputs, to be added to the loss.
	carries bool

	mu sync.RWMutex // for the variables' values
}

// piece is a part of a model that is built separately.
type piece struct {
	name  string
	site  uint32 // of its random numbers
	build func(scope *model.Scope, x, targets *graph.Node) *graph.Node
	in    shapes.Shape // of the x that it was first built for

	variables []variable // of its parameters, in the order of their first use
	tree      params.Tree
	fixed     []variable // variables that it only reads and that are not floats
	store     []variable // these, and those that no piece uses: what it finds in a store

	random  bool         // whether it uses random numbers
	changed bool         // whether it changes variables
	penalty dtypes.DType // of its regularizers' part of the loss, if it has regularizers

	// createsAll says that it can be built on an empty store: it creates all variables that it uses.
	createsAll bool
}

// variable is a variable of the store when the model was made.
type variable struct {
	path      string // "/block0/dense/weights"
	shape     shapes.Shape
	trainable bool
}

// name is the path with dots as separators, and none at the start.
func (v variable) name() string {
	return strings.ReplaceAll(strings.TrimPrefix(v.path, model.ScopeSeparator), model.ScopeSeparator, ".")
}

// New builds the loss once for inputs and targets of the given shapes, so that its variables are created in the store,
// and initializes those without a value on the backend, exactly as a [model.Exec] would. (It does not run the loss.)
//
// The parameters are the variables that the loss uses, in the order of their first use. A parameter's name is its
// variable's path: "block0.dense.weights" for "/block0/dense/weights". Variables that are not floats, which must not be
// trainable, become constants of the graphs.
//
// It is an error if the model changes a trainable variable, or one that is not a float, in training, or relies on
// GoMLX's trainer for more than regularizers. So is a loss that panics or is not a float scalar, no trainable variable
// or one that is not a float, and two variables with the same name ("/a/b" and "/a.b"). After an error, the store may
// have new variables.
func New(backend compute.Backend, store *model.Store, loss Loss, inputs, targets shapes.Shape) (*Model, error) {
	if loss == nil {
		return nil, errors.New("storemodel: the loss is nil: give a function")
	}
	return newModel(backend, store, []*piece{{name: "model", build: loss}}, inputs, targets)
}

func newModel(backend compute.Backend, store *model.Store, pieces []*piece,
	inputs, targets shapes.Shape) (*Model, error) {
	if backend == nil || store == nil {
		return nil, errors.New("storemodel: the backend or the store is nil: give both")
	}
	if store.VariablesAsConst() {
		return nil, errors.New("storemodel: the store makes its variables constants: call WithVariableAsConst(false)")
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
	users := map[string]bool{randomState: true} // which a store creates itself
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
		if err := m.tryBuild(backend, p, targets, false); err != nil {
			return nil, fmt.Errorf("storemodel: building %s again: %w", p.what(), err)
		}
		p.createsAll = m.tryBuild(backend, p, targets, true) == nil
	}
	return m, nil
}

// what names the piece in errors.
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

// link makes the chain. It returns an error if the variables do not form a tree, or none is trainable.
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
			return fmt.Errorf("storemodel: layer %q returns %s, but layers change variables or have regularizers: "+
				"return floats with an axis for the batch", m.pieces[i-1].name, p.in)
		}
	}
	if trained == 0 {
		return fmt.Errorf("storemodel: the loss uses no trainable variables, of the %d in the store: there is nothing "+
			"to train", inStore)
	}
	return m.chain.Validate()
}

// tryBuild builds a piece as for training, in a graph that is never run.
func (m *Model) tryBuild(backend compute.Backend, p *piece, targets shapes.Shape, empty bool) error {
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

// Params returns the parameters, including the buffers ([Model.BufferNames]).
func (m *Model) Params() params.Tree { return m.chain.Params() }

// BufferNames returns the names of the parameters whose variables are not trainable. It implements train.Buffered.
func (m *Model) BufferNames() []string { return m.chain.Buffers }

// Chain returns the model as a chain of blocks: one for each layer of [NewChain], or one block.
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

// try calls a function and converts a panic to an error.
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
