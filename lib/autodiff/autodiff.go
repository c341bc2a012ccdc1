// Package autodiff gives a piece of a GoMLX graph a gradient of the caller's own ([Custom]), and cuts a graph function
// and its gradient into two programs ([Split]).
package autodiff

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
)

// Custom returns the outputs of forward, with the gradient that backward computes in place of the one that GoMLX would
// derive: JAX's custom_vjp (https://docs.jax.dev/en/latest/notebooks/Custom_derivative_rules_for_Python_code.html).
//
// backward gets the inputs, the outputs and the output gradients (zeros where there are none), each of its output's
// shape. It returns a gradient for each input, of the input's shape, or nil for none; it must be nil for inputs that
// are not floats. Inputs may differ in shape and type. backward is called for each graph.Gradient, and under
// Node.Checkpoint its inputs and outputs are recomputed ones, so it must use these and not values that forward stored.
// forward must reach everything that needs a gradient through its arguments.
//
// An input that the differentiated variables do not influence is differentiated as well if backward gives it a
// gradient, through everything that it was computed from, as with GoMLX's fused operations. If it was computed by an
// operation without a gradient, such as a While loop, pass it through graph.StopGradient, or return nil for it.
//
// It panics where GoMLX does while a graph is built, without inputs or outputs, and on gradients of a wrong number or
// shape.
func Custom(inputs []*graph.Node, forward func(in []*graph.Node) []*graph.Node,
	backward func(in, out, v []*graph.Node) []*graph.Node) []*graph.Node {
	if len(inputs) == 0 {
		panic(errors.New("autodiff: Custom of no inputs: give at least one"))
	}
	out := forward(slices.Clone(inputs))
	if len(out) == 0 {
		panic(errors.New("autodiff: forward returned no outputs: return at least one"))
	}
	// GoMLX sends the gradient of a fused operation to the nodes that it was fused from. Here the "fused" nodes are the
	// outputs, and the others are a hub that nothing computes: it has all arguments of backward as operands, and
	// backward is its gradient.
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

// customGradient is the gradient of one hub.
type customGradient struct {
	outputs  int
	backward func(in, out, v []*graph.Node) []*graph.Node
}

// hub returns stand-ins for the outputs, which are results of one node. That node's operands are the outputs, the
// inputs and a mark that holds the gradient. Outputs come first: under Checkpoint GoMLX recomputes the operands when
// the first result's gradient is there.
func hub(in, out []*graph.Node, backward func(in, out, v []*graph.Node) []*graph.Node) []*graph.Node {
	mark := graph.IdentityWithCustomGradient(graph.Const(in[0].Graph(), true), func(_, _ *graph.Node) *graph.Node {
		panic(customGradient{len(out), backward})
	})
	return graph.OptimizationBarriers(slices.Concat(out, in, []*graph.Node{mark})...)[:len(out)]
}

// gradientOf returns the gradient of a node if it is a hub. A gradient function is the only data that GoMLX copies with
// a node; the mark's function panics with what it holds. Nothing else has a gradient function on a boolean.
func gradientOf(node *graph.Node) (found customGradient, ok bool) {
	// GoMLX copies a barrier with one operand as that operand
	if node.Type() != graph.NodeTypeOptimizationBarrier {
		return customGradient{}, false
	}
	operands := node.Inputs()
	mark := operands[len(operands)-1]
	if mark.NumOutputs() != 1 || mark.DType() != dtypes.Bool || mark.CustomGradient() == nil {
		return customGradient{}, false
	}
	defer func() { found, ok = recover().(customGradient) }()
	mark.CustomGradient()(mark, []*graph.Node{nil}, shapes.Shape{})
	return customGradient{}, false
}

// GoMLX registers gradients by type of node. Other barriers keep their gradient.
func init() {
	barrier := graph.VJPRegistration[graph.NodeTypeOptimizationBarrier]
	graph.VJPRegistration[graph.NodeTypeOptimizationBarrier] = func(node *graph.Node, vs []*graph.Node,
		of shapes.Shape) []*graph.Node {
		if r, ok := gradientOf(node); ok {
			return r.gradients(node.Inputs(), vs)
		}
		return barrier(node, vs, of)
	}
}

// gradients returns the gradients of a hub's operands; only inputs have any.
func (r customGradient) gradients(operands, vs []*graph.Node) []*graph.Node {
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
			panic(fmt.Errorf("autodiff: backward returned a gradient for input %d of type %s: return nil", i,
				in[i].DType()))
		case !g.Shape().Equal(in[i].Shape()):
			panic(fmt.Errorf("autodiff: backward returned a gradient of shape %s for input %d of shape %s: they must "+
				"be equal", g.Shape(), i, in[i].Shape()))
		}
	}
	return slices.Concat(make([]*graph.Node, len(out)), gradients, []*graph.Node{nil})
}

// Once returns the node that build creates, and calls build only once per graph and key. Use it for values that are the
// same wherever they are needed, such as a device's number. The node is not part of a [Split]'s function, whose two
// passes may be in two graphs with a node each; it must depend on no other node.
func Once(g *graph.Graph, key any, build func() *graph.Node) *graph.Node {
	at := onceKey{key}
	if n, ok := g.State(at).(*graph.Node); ok {
		return n
	}
	of, _ := g.State(onceNodes{}).(map[*graph.Node]bool)
	if of == nil {
		of = map[*graph.Node]bool{}
		g.AttachState(onceNodes{}, of)
	}
	before := len(g.Nodes())
	made := build()
	for _, n := range g.Nodes()[before:] {
		of[n] = true
	}
	g.AttachState(at, made)
	return made
}

type (
	onceKey   struct{ key any }
	onceNodes struct{}
)

// isOnce reports whether [Once] created a node.
func isOnce(n *graph.Node) bool {
	of, _ := n.Graph().State(onceNodes{}).(map[*graph.Node]bool)
	return of[n]
}

// Prepare calls prepare for a graph now, and for each scratch graph that [Split] builds for it. Use it to attach state
// that graph functions read. Several are called in turn.
func Prepare(g *graph.Graph, prepare func(g *graph.Graph)) {
	all := prepare
	if before, ok := g.State(prepared{}).(func(*graph.Graph)); ok {
		all = func(g *graph.Graph) {
			before(g)
			prepare(g)
		}
	}
	g.AttachState(prepared{}, all)
	prepare(g)
}

type prepared struct{}
