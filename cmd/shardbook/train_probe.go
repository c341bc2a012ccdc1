package main

import (
	"errors"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// probeFunc is a graph function of the parameters, in the type that the model computes in.
type probeFunc func(p params.Nodes, in []*graph.Node) []*graph.Node

// probe is a probeFunc, compiled, with copies of the parameters on device 0.
type probe struct {
	program *xla.Portable
	weights []*tensors.Tensor
}

// newProbe makes a probe of full parameters, in the type that they are stored in.
func newProbe(backend *xla.Backend, recipe train.Recipe, named params.Named[*tensors.Tensor], fn probeFunc) (*probe,
	error) {
	policy := recipe.Policy()
	tree := recipe.Model.Params().As(policy.Compute)
	weights, err := named.List(tree)
	if err != nil {
		return nil, err
	}
	p := &probe{}
	for _, w := range weights {
		placed, err := backend.Put(w, 0)
		if err != nil {
			return nil, errors.Join(err, p.free())
		}
		p.weights = append(p.weights, placed)
	}
	p.program, err = xla.CompilePortable(backend, func(in []*graph.Node) []*graph.Node {
		weights := precision.Cast(in[:len(tree)], policy.Compute)
		return fn(tree.Nodes(weights), in[len(tree):])
	})
	if err != nil {
		return nil, errors.Join(err, p.free())
	}
	return p, nil
}

func (p *probe) Call(args ...any) ([]*tensors.Tensor, error) {
	var all []any
	for _, w := range p.weights {
		all = append(all, w)
	}
	return p.program.Call(0, append(all, args...)...)
}

func (p *probe) Close() {
	p.program.Close()
	p.free()
}

func (p *probe) free() error {
	var errs []error
	for _, w := range p.weights {
		errs = append(errs, w.FinalizeAll())
	}
	return errors.Join(errs...)
}
