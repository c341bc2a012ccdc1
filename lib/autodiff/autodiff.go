// Package autodiff gives a piece of a GoMLX graph a gradient of the caller's own: [Custom]. And it cuts a piece and its
// gradient into two programs: [Split].
package autodiff

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
)

// Custom returns what forward makes of the inputs, with the gradient that backward gives instead of the one that GoMLX
// would derive: JAX's custom_vjp
// (https://docs.jax.dev/en/latest/notebooks/Custom_derivative_rules_for_Python_code.html).
//
// backward gets the inputs, the outputs and the gradients arriving at the outputs (zeros where none arrives), each of
// its output's shape. It returns one gradient of its input's shape for each input, or nil where there is none; it
// must be nil for inputs that are not floats. Backward is called anew for each graph.Gradient, and under
// Node.Checkpoint its inputs and outputs are the rematerialized ones, so it must use these and not what forward kept.
// Inputs may differ in shape and type. forward must reach through its arguments whatever needs a gradient.
//
// It panics where GoMLX does while a graph is built, without inputs or outputs, and on gradients of a wrong number or
// shape.
//
// An input that depends on nothing whose gradient is asked for is differentiated all the same if backward gives it a
// gradient, through all that made it, as behind GoMLX's own fused operations. So where it was made with an operation
// without a gradient, such as a While loop, it must come through graph.StopGradient, or have nil for its gradient.
func Custom(inputs []*graph.Node, forward func(in []*graph.Node) []*graph.Node,
	backward func(in, out, v []*graph.Node) []*graph.Node) []*graph.Node {
	if len(inputs) == 0 {
		panic(errors.New("autodiff: Custom of no inputs: give at least one"))
	}
	out := forward(slices.Clone(inputs))
	if len(out) == 0 {
		panic(errors.New("autodiff: forward returned no outputs: return at least one"))
	}
	// GoMLX hands the gradient of an operation that is fused to the nodes it was fused from. Here the "fused" ones
	// are the outputs, and the others a hub, which nothing computes: it joins all that backward is to get, and
	// its gradient is backward.
	outputs, _ := graph.InternalFusedOpCallerMulti(
		func() []*graph.Node {
			same := make([]*graph.Node, len(out))
			for i, o := range out {
				same[i] = graph.Identity(o)
			}
			return same
		},
		func() []*graph.Node { return hub(inputs, out, backward) },
		true)
	return outputs
}

// rule is the gradient of one hub.
type rule struct {
	outputs  int
	backward func(in, out, v []*graph.Node) []*graph.Node
}

// hub returns stand-ins for the outputs, which are results of one node. That node's operands are the outputs, the
// inputs and a mark that holds the rule. Outputs come first: under Checkpoint GoMLX computes the operands again when
// the first result's gradient is there.
func hub(in, out []*graph.Node, backward func(in, out, v []*graph.Node) []*graph.Node) []*graph.Node {
	mark := graph.IdentityWithCustomGradient(graph.Const(in[0].Graph(), true), func(_, _ *graph.Node) *graph.Node {
		panic(rule{len(out), backward})
	})
	return graph.OptimizationBarriers(slices.Concat(out, in, []*graph.Node{mark})...)[:len(out)]
}

// ruleOf returns the rule of a node if it is a hub. A gradient function is all that GoMLX keeps with a node and its
// copies; the mark's throws what it holds. Nothing else has a gradient function on a boolean.
func ruleOf(node *graph.Node) (found rule, ok bool) {
	// for GoMLX the copy of a barrier of one operand is its operand
	if node.Type() != graph.NodeTypeOptimizationBarrier {
		return rule{}, false
	}
	operands := node.Inputs()
	mark := operands[len(operands)-1]
	if mark.NumOutputs() != 1 || mark.DType() != dtypes.Bool || mark.CustomGradient() == nil {
		return rule{}, false
	}
	defer func() { found, ok = recover().(rule) }()
	mark.CustomGradient()(mark, []*graph.Node{nil}, shapes.Shape{})
	return rule{}, false
}

// GoMLX has gradients by the type of a node. Other barriers keep theirs.
func init() {
	barrier := graph.VJPRegistration[graph.NodeTypeOptimizationBarrier]
	graph.VJPRegistration[graph.NodeTypeOptimizationBarrier] = func(node *graph.Node, vs []*graph.Node,
		of shapes.Shape) []*graph.Node {
		if r, ok := ruleOf(node); ok {
			return r.gradients(node.Inputs(), vs)
		}
		return barrier(node, vs, of)
	}
}

// gradients returns those of a hub's operands, of which only inputs have any.
func (r rule) gradients(operands, vs []*graph.Node) []*graph.Node {
	out, in := operands[:r.outputs], operands[r.outputs:len(operands)-1]
	gradients := r.backward(slices.Clone(in), slices.Clone(out), slices.Clone(vs[:r.outputs]))
	if len(gradients) != len(in) {
		panic(fmt.Errorf("autodiff: backward returned %d gradients for %d inputs: return one for each, or nil",
			len(gradients), len(in)))
	}
	for i, g := range gradients {
		switch {
		case g == nil:
		case !in[i].DType().IsFloat() && !in[i].DType().IsComplex():
			panic(fmt.Errorf("autodiff: backward returned a gradient for input %d of type %s: return nil", i, in[i].DType()))
		case !g.Shape().Equal(in[i].Shape()):
			panic(fmt.Errorf("autodiff: backward returned a gradient of shape %s for input %d of shape %s: they must be equal",
				g.Shape(), i, in[i].Shape()))
		}
	}
	return slices.Concat(make([]*graph.Node, len(out)), gradients, []*graph.Node{nil})
}
