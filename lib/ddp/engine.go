package ddp

import (
	"errors"
	"fmt"
	"sync"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// Engine has the programs of a recipe, which the ranks of this process share: each runs them on a device of its own.
type Engine struct {
	backend *xla.Backend
	recipe  train.Recipe
	options Options
	policy  precision.Policy
	model   chain.Model
	tree    params.Tree // the parameters, in the types that they are kept in
	passes  chain.Passes
	kinds   chain.Kinds
	all     [][]int // by block: the places of its parameters

	once     sync.Once // for what follows
	failed   error
	buckets  []Bucket
	slots    []slot // of the parameters
	blocks   []*block
	update   *xla.Portable   // of the whole state; nil where there are servers
	servers  []*xla.Portable // the updates of the buckets, and
	sum      *xla.Portable   // of their gradients
	programs []*xla.Portable // all of them
}

// NewEngine makes the engine of a recipe, whose model is best a chain of blocks (chain.Chained, as gpt.Config is):
// any other is one block. Programs are compiled when they are first run. Options, a recipe or a model that are not
// valid are errors.
func NewEngine(backend *xla.Backend, r train.Recipe, o Options) (*Engine, error) {
	if backend == nil {
		return nil, errors.New("ddp: the backend is nil: open one with xla.Open")
	}
	if err := o.validFor(r); err != nil {
		return nil, err
	}
	model, err := chain.Of(r.Model)
	if err != nil {
		return nil, err
	}
	r.Model = model // whose parameters may be in another order
	e := &Engine{backend: backend, recipe: r, options: o.withDefaults(), policy: r.Policy(), model: model}
	e.tree = model.Params().As(e.policy.Params)
	e.passes = chain.Passes{Model: model, Precision: e.policy, Keep: !o.Recompute}
	e.all, _ = model.Homes()
	return e, nil
}

// noShape is for engines with servers, which prepare before they know of a batch.
var noShape shapes.Shape

// prepare lays out the buckets and makes the programs, once, for micro-batches of a shape.
func (e *Engine) prepare(inputs, targets shapes.Shape) error {
	e.once.Do(func() {
		var used []bool
		if !e.options.Sync.Served() { // servers know of all
			if used, e.failed = e.used(inputs, targets); e.failed != nil {
				return
			}
		}
		e.buckets = Buckets(e.tree, used, e.policy.Reduce, e.options.BucketBytes)
		e.slots = slots(e.buckets, len(e.tree))
		e.failed = e.compile()
	})
	return e.failed
}

// used says which parameters the loss depends on. The gradients of the others are zero, and are not communicated: in
// PyTorch they would have to be looked for at each step (find_unused_parameters), or a bucket would wait for them for ever.
func (e *Engine) used(inputs, targets shapes.Shape) (used []bool, err error) {
	defer func() {
		if thrown := recover(); thrown != nil {
			err = fmt.Errorf("ddp: building the model: %v", thrown)
		}
	}()
	g := graph.NewGraph(e.backend, "")
	defer g.Finalize()
	computed := e.model.Params().As(e.policy.Compute)
	nodes := make([]*graph.Node, len(computed))
	for i, s := range computed {
		nodes[i] = graph.Parameter(g, s.Name, s.Shape)
	}
	loss := e.model.Loss(computed.Nodes(nodes), graph.Parameter(g, "inputs", inputs), graph.Parameter(g, "targets", targets))
	reached := map[*graph.Node]bool{}
	var visit func(n *graph.Node)
	visit = func(n *graph.Node) {
		if n == nil || reached[n] {
			return
		}
		reached[n] = true
		for _, in := range n.Inputs() {
			visit(in)
		}
	}
	visit(loss)
	used = make([]bool, len(nodes))
	for i, n := range nodes {
		used[i] = reached[n]
	}
	return used, nil
}

// Buckets returns the buckets of the gradients, in the order in which they are filled; nil before the first step.
func (e *Engine) Buckets() []Bucket { return e.buckets }

// Close frees the programs, once none of them runs.
func (e *Engine) Close() {
	e.once.Do(func() { e.failed = errors.New("ddp: the engine is closed: make another") })
	for _, p := range e.programs {
		p.Close()
	}
}
