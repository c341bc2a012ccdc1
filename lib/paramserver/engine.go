package paramserver

import (
	"errors"
	"sync"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/ddp"
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
	buckets  []ddp.Bucket
	slots    []slot // of the parameters: where their gradients lie
	blocks   []*block
	servers  []*xla.Portable // the updates of the buckets, and
	sum      *xla.Portable   // of their gradients
	programs []*xla.Portable // all of them
}

// NewEngine makes the engine of a recipe, whose model is best a chain of blocks (chain.Chained, as gpt.Config is):
// any other is one block. Programs are compiled when they are first run. Options, a recipe or a model that are not
// valid are errors.
func NewEngine(backend *xla.Backend, r train.Recipe, o Options) (*Engine, error) {
	if backend == nil {
		return nil, errors.New("paramserver: the backend is nil: open one with xla.Open")
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

// prepare lays out the buckets and makes the programs, once.
func (e *Engine) prepare() error {
	e.once.Do(func() {
		e.buckets = ddp.Buckets(e.tree, e.policy.Reduce, e.options.BucketBytes)
		e.slots = slots(e.buckets, len(e.tree))
		e.failed = e.compile()
	})
	return e.failed
}

// Buckets returns the buckets of the gradients, in the order in which they are filled; nil before a rank has joined.
func (e *Engine) Buckets() []ddp.Bucket { return e.buckets }

// Close frees the programs, once none of them runs.
func (e *Engine) Close() {
	e.once.Do(func() { e.failed = errors.New("paramserver: the engine is closed: make another") })
	for _, p := range e.programs {
		p.Close()
	}
}

// slot is where a gradient lies.
type slot struct{ bucket, offset int }

// slots returns where the gradient of each of a number of parameters lies.
func slots(buckets []ddp.Bucket, parameters int) []slot {
	at := make([]slot, parameters)
	for b, bucket := range buckets {
		for k, place := range bucket.Places {
			at[place] = slot{b, bucket.Offsets[k]}
		}
	}
	return at
}
