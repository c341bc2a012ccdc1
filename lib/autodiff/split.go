package autodiff

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/distributed"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
)

// Split cuts a graph function and its gradient into two programs. The forward one returns, besides the outputs, what is
// costly to make again of all that the gradient needs; the backward one takes that, and makes only the rest again. It
// is jax.vjp across programs, with the policy dots_saveable of jax.checkpoint
// (https://docs.jax.dev/en/latest/gradient-checkpointing.html).
//
// Kept are the results of products, convolutions, Fourier transforms, sorts, calls (and with them kernels), loops,
// branches and collectives; and, where these went into it, what Node.Checkpoint, Node.StopCheckpoint and barriers hold,
// so that a function's own choice of what to recompute, or to compress, is respected. All else is made again:
// elementwise operations, reductions, random bits, changes of shape. What cannot be taken from the kept values, such as
// what a loop in the function takes from outside, is computed again from the inputs, too.
//
// The gradients are those of one program, to the bit where operations run as they are written. A compiler fuses two
// programs otherwise than one, which changes their rounding.
type Split struct {
	// Fn is the function. It must reach all nodes through its arguments, and build the same graph whenever it is called
	// with arguments of the same shapes.
	Fn func(in []*graph.Node) []*graph.Node
	// Of are the places, among the inputs, of those whose gradients are wanted. They must be floats.
	Of []int
}

// Forward returns the function's outputs, and what Backward wants of them and of what was made on the way.
//
// It builds a graph, and panics where the function or its gradient does.
func (s Split) Forward(in []*graph.Node) (out, kept []*graph.Node) {
	want := s.rehearse(in)
	p := s.build(in)
	return p.out, p.choose(want)
}

// Backward returns the gradients of the inputs that Of lists, in its order, given the same inputs as Forward's, what it
// kept, and the gradients arriving at the outputs, each of its output's shape, or nil for an output that has none. For
// a loss that is 1.
//
// It builds a graph, and panics where the function or its gradient does, and if kept or v do not fit.
func (s Split) Backward(in, kept, v []*graph.Node) []*graph.Node {
	want := s.rehearse(in)
	p := s.build(in)
	p.replace(p.choose(want), kept)
	return p.gradients(s.Of, v)
}

// Saved returns the shapes of what Forward keeps on a backend, for inputs of the given shapes; outside of a mesh, so
// the function must have no collectives. An error is what Forward would panic with.
func (s Split) Saved(backend compute.Backend, in ...shapes.Shape) (kept []shapes.Shape, err error) {
	defer func() {
		if thrown := recover(); thrown != nil {
			err = fmt.Errorf("autodiff: building the graph: %v", thrown)
		}
	}()
	g := graph.NewGraph(backend, "")
	defer g.Finalize()
	_, values := s.Forward(parameters(g, in))
	for _, n := range values {
		kept = append(kept, n.Shape())
	}
	return kept, nil
}

// rehearse builds the function and its gradient in a graph that is thrown away, and returns what is to be kept.
func (s Split) rehearse(in []*graph.Node) choice {
	p, v, end := s.again(in)
	defer end()
	return p.neededBy(p.gradients(s.Of, v))
}

// again builds the function in a graph that is to be thrown away, with gradients of the outputs.
func (s Split) again(in []*graph.Node) (p pass, v []*graph.Node, end func()) {
	s.check(in)
	like := in[0].Graph()
	g := graph.NewGraph(like.Backend(), "")
	if err := distribute(g, like); err != nil {
		g.Finalize()
		panic(fmt.Errorf("autodiff: %w", err))
	}
	if prepare, ok := like.State(prepared{}).(func(*graph.Graph)); ok {
		Prepare(g, prepare)
	}
	p = s.build(parameters(g, shapesOf(in)))
	v = make([]*graph.Node, len(p.out))
	for i, y := range p.out {
		if y.DType().IsFloat() {
			v[i] = parameters(g, []shapes.Shape{y.Shape()})[0]
		}
	}
	return p, v, g.Finalize
}

func parameters(g *graph.Graph, of []shapes.Shape) []*graph.Node {
	nodes := make([]*graph.Node, len(of))
	for i, shape := range of {
		nodes[i] = graph.Parameter(g, g.UniqueName("split"), shape)
	}
	return nodes
}

func shapesOf(nodes []*graph.Node) []shapes.Shape {
	of := make([]shapes.Shape, len(nodes))
	for i, n := range nodes {
		of[i] = n.Shape()
	}
	return of
}

// distribute has a graph be for the same mesh as another.
func distribute(g, like *graph.Graph) error {
	switch like.DistributedStrategy() {
	case distributed.SPMD:
		return g.SetSPMD(like.DeviceMeshes()[0])
	case distributed.AutoSharding:
		return g.SetAutoSharding(like.DeviceMeshes()...)
	}
	return nil
}

func (s Split) check(in []*graph.Node) {
	if len(in) == 0 {
		panic(errors.New("autodiff: Split of no inputs: give at least one"))
	}
	for i, x := range in {
		if x == nil {
			panic(fmt.Errorf("autodiff: input %d of Split is nil", i))
		}
	}
	for _, i := range s.Of {
		if i < 0 || i >= len(in) || !in[i].DType().IsFloat() {
			panic(fmt.Errorf("autodiff: Split.Of has %d, which is none of the %d inputs, or no float: give "+
				"the places of floats", i, len(in)))
		}
	}
}

// pass is a function as built in a graph.
type pass struct {
	in, out []*graph.Node
	made    []*graph.Node // in their order; without those inside loops, branches and other functions
	last    *graph.Node   // made of all
	v       []*graph.Node // the gradients of the outputs, where the backward pass is part of it
}

// build calls the function with arguments that depend on nothing.
func (s Split) build(in []*graph.Node) pass {
	s.check(in)
	g := in[0].Graph()
	p := pass{in: make([]*graph.Node, len(in))}
	for i, x := range in {
		p.in[i] = graph.Identity(graph.StopGradient(x))
	}
	before := len(g.Nodes())
	p.out = s.Fn(slices.Clone(p.in))
	for i, y := range p.out {
		if y == nil || y.Graph() != g {
			panic(fmt.Errorf("autodiff: output %d of Split's function is nil or of another graph", i))
		}
	}
	for _, n := range g.Nodes()[before:] {
		if n.Function() == g.CurrentFunc() && !isOnce(n) {
			p.made = append(p.made, n)
		}
	}
	p.last = g.LastNode()
	return p
}

// gradients returns those of the inputs for those of the outputs.
func (p pass) gradients(of []int, v []*graph.Node) []*graph.Node {
	if len(v) != len(p.out) {
		panic(fmt.Errorf("autodiff: %d gradients for the %d outputs of Split's function: give one for each, or nil",
			len(v), len(p.out)))
	}
	// Nothing computes the sum: its gradient for an output is v.
	sum := graph.Const(p.in[0].Graph(), float32(0))
	for i, y := range p.out {
		if v[i] == nil {
			continue
		}
		if !v[i].Shape().Equal(y.Shape()) || !y.DType().IsFloat() {
			panic(fmt.Errorf("autodiff: a gradient of shape %s for output %d of Split's function, of shape %s: they "+
				"must be equal, and floats",
				v[i].Shape(), i, y.Shape()))
		}
		part := graph.ReduceAllSum(graph.Mul(y, graph.StopGradient(v[i])))
		sum = graph.Add(sum, graph.ConvertDType(part, dtypes.Float32))
	}
	if len(of) == 0 {
		return nil
	}
	selected := make([]*graph.Node, len(of))
	for i, at := range of {
		selected[i] = p.in[at]
	}
	return graph.Gradient(sum, selected...)
}
