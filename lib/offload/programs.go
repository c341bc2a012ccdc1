package offload

import (
	"fmt"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/xla"
)

// stage is a block with its programs.
type stage struct {
	chain.Block
	params []int // its parameters, as places in the model's list
	home   []int // those that are updated with it: a parameter's home is the first block that has it
	// forward computes the output from the parameters and the input. The last block has none.
	forward *xla.Program
	// backward computes, from the parameters, the input and the gradient of the output, the gradient of the input (but
	// not in the first block) and those of the parameters. In the last block it takes the targets in place of the
	// gradient, and returns the loss first.
	backward *xla.Program
}

// stages compiles programs for the blocks; twins share theirs.
func stages(mesh *xla.Mesh, passes chain.Passes) ([]*stage, error) {
	blocks := passes.Model.Blocks
	twins := passes.Model.Twins()
	all, home := passes.Model.Homes()
	compile := func(fn func(in []*graph.Node) []*graph.Node) (*xla.Program, error) {
		return xla.Compile(mesh, fn, xla.In(xla.Replicated()).Gives(xla.Replicated()))
	}
	made := make([]*stage, len(blocks))
	for i, b := range blocks {
		made[i] = &stage{Block: b, params: all[i], home: home[i]}
		if twin := made[twins[i]]; twin != made[i] {
			made[i].forward, made[i].backward = twin.forward, twin.backward
			continue
		}
		n := len(b.Params)
		operands := func(in []*graph.Node) chain.Operands { return chain.Operands{Weights: in[:n], X: in[n]} }
		var err error
		if i < len(blocks)-1 {
			if made[i].forward, err = compile(func(in []*graph.Node) []*graph.Node {
				y, _ := passes.Forward(i, operands(in))
				return []*graph.Node{y}
			}); err != nil {
				return nil, err
			}
		}
		if made[i].backward, err = compile(func(in []*graph.Node) []*graph.Node {
			return outputs(passes.Backward(i, operands(in), nil, in[n+1], nil), in[n].Graph())
		}); err != nil {
			return nil, err
		}
	}
	return made, nil
}

// outputs are those of a backward program; there is at least one.
func outputs(g chain.Gradients, of *graph.Graph) (out []*graph.Node) {
	for _, x := range append([]*graph.Node{g.Loss, g.X}, g.Weights...) {
		if x != nil {
			out = append(out, x)
		}
	}
	if len(out) == 0 {
		out = append(out, graph.Const(of, float32(0)))
	}
	return out
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
