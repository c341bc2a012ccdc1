package offload

import (
	"fmt"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/xla"
)

// stage is a block with its programs.
type stage struct {
	Block
	params []int // its parameters, as places in the model's list
	home   []int // those that are updated with it: a parameter's home is the first block that has it
	// forward computes the output from the parameters and the input. The last block has none.
	forward *xla.Program
	// backward computes, from the parameters, the input and the gradient of the output, the gradient of the input (but
	// not in the first block) and those of the parameters. In the last block it takes the targets in place of the
	// gradient, and returns the loss first.
	backward *xla.Program
}

// passes are the graph functions of a model's blocks.
type passes struct {
	model  Model
	policy precision.Policy
}

// tree lists a block's parameters in the type to compute in.
func (p passes) tree(b Block) params.Tree { return b.Params.As(p.policy.Compute) }

func (p passes) forward(b Block) func(in []*graph.Node) []*graph.Node {
	return func(in []*graph.Node) []*graph.Node {
		n := len(b.Params)
		return []*graph.Node{b.Apply(p.tree(b).Nodes(in[:n]), in[n])}
	}
}

func (p passes) backward(b Block, first, last bool) func(in []*graph.Node) []*graph.Node {
	return func(in []*graph.Node) []*graph.Node {
		n := len(b.Params)
		weights, x, above := in[:n], in[n], in[n+1]
		y := b.Apply(p.tree(b).Nodes(weights), x)
		var out []*graph.Node
		var toward *graph.Node // the scalar whose gradients these are
		if last {
			toward = graph.ConvertDType(p.model.Criterion(y, above), p.policy.Output)
			out = append(out, graph.ConvertDType(toward, dtypes.Float32))
		} else {
			toward = graph.ReduceAllSum(graph.Mul(y, graph.StopGradient(above))) // whose gradient in y is that from above
		}
		of := weights
		if !first {
			of = append([]*graph.Node{x}, weights...)
		}
		if len(of) == 0 { // a first block with nothing to learn
			return append(out, graph.Const(x.Graph(), float32(0)))
		}
		return append(out, graph.Gradient(toward, of...)...)
	}
}

// stages compiles a program for each kind of block and place in the chain.
func (p passes) stages(mesh *xla.Mesh, all params.Tree) ([]*stage, error) {
	compiled := map[string]*xla.Program{}
	compile := func(key string, fn func(in []*graph.Node) []*graph.Node) (*xla.Program, error) {
		var err error
		if compiled[key] == nil {
			compiled[key], err = xla.Compile(mesh, fn, xla.In(xla.Replicated()).Gives(xla.Replicated()))
		}
		return compiled[key], err
	}
	stages, seen := make([]*stage, len(p.model.Blocks)), map[string]bool{}
	for i, b := range p.model.Blocks {
		s := &stage{Block: b}
		stages[i] = s
		for _, spec := range b.Params {
			at := all.Index(spec.Name)
			if s.params = append(s.params, at); !seen[spec.Name] {
				s.home = append(s.home, at)
			}
			seen[spec.Name] = true
		}
		key := "kind " + b.Kind
		if b.Kind == "" {
			key = "name " + b.Name
		}
		first, last := i == 0, i == len(stages)-1
		var err error
		if !last {
			if s.forward, err = compile("forward "+key, p.forward(b)); err != nil {
				return nil, err
			}
		}
		if s.backward, err = compile(fmt.Sprint(first, last, key), p.backward(b, first, last)); err != nil {
			return nil, err
		}
	}
	return stages, nil
}

// call runs a program on the device. Its outputs are among the holdings, as of the given kinds, of which the last stands
// for the rest.
func (l *link) call(what string, p *xla.Program, args []*dtensor.Tensor, kinds ...Kind) ([]*dtensor.Tensor, error) {
	defer l.trace.Start(0, "compute", what)()
	list := make([]any, len(args))
	for i, a := range args {
		list[i] = a
	}
	out, err := p.Call(list...)
	if err != nil {
		return nil, fmt.Errorf("offload: %s: %w", what, err)
	}
	for _, a := range args {
		if !a.Shards()[0].Ok() { // it was donated
			l.held.gave(a)
		}
	}
	for i, x := range out {
		l.held.onDevice(kinds[min(i, len(kinds)-1)], x)
	}
	return out, nil
}
