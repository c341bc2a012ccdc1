package zero

import (
	"errors"
	"sync"

	"github.com/gomlx/compute"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/offload"
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
	passes  chain.Passes
	kinds   chain.Kinds

	mu       sync.Mutex
	programs map[int]*programs // by the number of shards
	host     compute.Backend   // of updates on the host; nil where there are none
	portable []*xla.Portable   // all of them
	execs    []*graph.Exec     // on the host
	closed   bool
}

// NewEngine makes the engine of a recipe, whose model is best a chain of blocks (chain.Chained, as gpt.Config is):
// any other is one block. Programs are compiled when they are first run. Options, a recipe or a model that are not
// valid are errors.
func NewEngine(backend *xla.Backend, recipe train.Recipe, o Options) (*Engine, error) {
	if backend == nil {
		return nil, errors.New("zero: the backend is nil: open one with xla.Open")
	}
	model, recipe, err := chainOf(recipe, o)
	if err != nil {
		return nil, err
	}
	e := &Engine{backend: backend, recipe: recipe, options: o.withDefaults(), policy: recipe.Policy(), model: model, programs: map[int]*programs{}}
	e.passes = chain.Passes{Model: model, Precision: e.policy, Keep: !o.Recompute}
	if o.Offload {
		e.host, err = offload.PlainGo()
	}
	return e, err
}

// masters says whether shards of the parameters are kept besides those that are computed with.
func (e *Engine) masters() bool { return e.policy.Mixed() || e.options.Offload }

// of returns the programs for so many shards.
func (e *Engine) of(shards int) (*programs, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, errors.New("zero: the engine is closed: make another")
	}
	if e.programs[shards] == nil {
		p, err := e.compile(shards)
		if err != nil {
			return nil, err
		}
		e.programs[shards] = p
	}
	return e.programs[shards], nil
}

// device makes a program for any device.
func (e *Engine) device(fn func(in []*graph.Node) []*graph.Node, donated ...int) (*xla.Portable, error) {
	p, err := xla.CompilePortable(e.backend, fn, donated...)
	if err == nil {
		e.portable = append(e.portable, p)
	}
	return p, err
}

// onHost is a program of the host. What is donated to it is left for its caller to free.
type onHost struct{ exec *graph.Exec }

// Call implements [rank.Program].
func (p onHost) Call(_ int, args ...any) ([]*tensors.Tensor, error) { return p.exec.Call(args...) }

// hostProgram makes a program in plain Go.
func (e *Engine) hostProgram(fn func(in []*graph.Node) []*graph.Node, _ ...int) (rank.Program, error) {
	exec, err := graph.NewExec(e.host, xla.ThrowingErrors(fn))
	if err == nil {
		e.execs = append(e.execs, exec)
	}
	return onHost{exec}, err
}

// Close frees the programs, once none of them runs.
func (e *Engine) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	for _, p := range e.portable {
		p.Close()
	}
	for _, x := range e.execs {
		x.Finalize()
	}
	if e.host != nil {
		e.host.Finalize()
	}
	e.portable, e.execs, e.host = nil, nil, nil
}
