package pipeline

import (
	"errors"
	"fmt"
	"sync"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// Engine has the programs of a recipe, which the ranks of this process share: each runs them on a device of its own. They are
// programs of blocks, and so the same for any schedule and any cut into stages: see [Engine.Pipeline].
type Engine struct {
	backend *xla.Backend
	recipe  train.Recipe
	policy  precision.Policy
	model   chain.Model
	tree    params.Tree // the parameters, in the types that they are kept in
	passes  chain.Passes
	kinds   chain.Kinds
	blocks  []*block

	mu       sync.Mutex
	sizes    map[string][]sizes      // of the blocks, by the shapes of micro-batches
	updates  map[string]*rank.Phases // by what a rank has
	add      *xla.Portable           // of gradients of one parameter in several blocks of a rank
	programs []*xla.Portable         // all of them
	closed   bool
}

// NewEngine makes the engine of a recipe, whose model is a chain of blocks (chain.Chained, as gpt.Config is): any
// other is one block, and so one stage. Programs are compiled before the first step that needs them. A recipe or a
// model that is not valid is an error.
func NewEngine(backend *xla.Backend, r train.Recipe) (*Engine, error) {
	if backend == nil {
		return nil, errors.New("pipeline: the backend is nil: open one with xla.Open")
	}
	model, r, err := chainOf(r)
	if err != nil {
		return nil, err
	}
	e := &Engine{backend: backend, recipe: r, policy: r.Policy(), model: model,
		sizes: map[string][]sizes{}, updates: map[string]*rank.Phases{}}
	e.tree = model.Params().As(e.policy.Params)
	e.passes = chain.Passes{Model: model, Precision: e.policy, Keep: true}
	return e, e.compile()
}

// Close frees the programs, once none of them runs.
func (e *Engine) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	for _, p := range e.programs {
		p.Close()
	}
	e.programs = nil
}

// program makes a program, which Close frees.
func (e *Engine) program(fn func(in []*graph.Node) []*graph.Node, donated ...int) (*xla.Portable, error) {
	p, err := xla.CompilePortable(e.backend, fn, donated...)
	if err == nil {
		e.programs = append(e.programs, p)
	}
	return p, err
}

// sizesOf returns the shapes of what passes between the programs, for micro-batches of a shape.
func (e *Engine) sizesOf(inputs, targets shapes.Shape) ([]sizes, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, errors.New("pipeline: the engine is closed: make another")
	}
	key := inputs.String() + targets.String()
	if of := e.sizes[key]; of != nil {
		return of, nil
	}
	of, err := e.measure(inputs, targets)
	if err == nil {
		e.sizes[key] = of
	}
	return of, err
}

// updateOf returns the update of a rank that has a share of the model: from its state, the gradients of its parameters, the loss and
// the factor of the gradients. The old weights are donated, unless they are to stay.
func (e *Engine) updateOf(own Share, stay bool) (*rank.Phases, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := fmt.Sprint(own.Blocks, own.Counted, stay)
	if p := e.updates[key]; p != nil {
		return p, nil
	}
	state := own.Recipe.State()
	var inputs []shapes.Shape
	var donated []int
	for i, s := range state {
		inputs = append(inputs, s.Shape)
		if i >= len(own.Tree) || !stay {
			donated = append(donated, i)
		}
	}
	for _, s := range own.Tree.As(e.policy.Reduce) {
		inputs = append(inputs, s.Shape)
	}
	inputs = append(inputs, shapes.Make(dtypes.Float32), shapes.Make(dtypes.Float32))
	fn := func(in []*graph.Node, sum func(*graph.Node) *graph.Node) []*graph.Node {
		grads, loss, factor := in[len(state):len(in)-2], in[len(in)-2], in[len(in)-1]
		means := make([]*graph.Node, len(grads))
		for i, x := range grads {
			means[i] = rank.Scaled(x, factor)
		}
		return own.Recipe.UpdateShare(train.Share{Places: own.Places, Counted: own.Counted, Sum: sum}, in[:len(state)], loss, means)
	}
	compile := func(fn func(in []*graph.Node) []*graph.Node, donated ...int) (rank.Program, error) {
		return e.program(fn, donated...)
	}
	p, err := rank.NewPhases(graph.NewGraph(e.backend, ""), compile, fn, inputs, donated...)
	if err == nil {
		e.updates[key] = p
	}
	return p, err
}
