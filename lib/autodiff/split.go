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

// Split cuts a graph function and its gradient into two programs. The forward program returns the outputs and the saved
// activations: the values that the gradient needs and that are costly to recompute. The backward program takes these
// and recomputes the rest. It is jax.vjp across programs, with the policy dots_saveable of jax.checkpoint
// (https://docs.jax.dev/en/latest/gradient-checkpointing.html).
//
// It saves the results of matmuls, convolutions, Fourier transforms, sorts, calls (and so kernels), loops, branches and
// collectives. It also saves the operands of Node.Checkpoint, Node.StopCheckpoint and barriers that depend on such
// results, so it respects the function's own choice of what to recompute or compress. All else is recomputed:
// elementwise operations, reductions, random bits, changes of shape. What saved values do not determine, such as what a
// loop in the function uses from outside, is recomputed from the inputs.
//
// The gradients have the same bits as in one program if operations run as they are written. A compiler fuses two
// programs differently from one, which changes rounding.
type Split struct {
	// Fn is the function. It must reach all nodes through its arguments, and build the same graph in each call with
	// arguments of the same shapes.
	Fn func(in []*graph.Node) []*graph.Node
	// Of are the indices of the inputs whose gradients are wanted. They must be floats.
	Of []int
}

// Forward returns the function's outputs, and the saved activations for Backward. It builds a graph, and panics if the
// function or its gradient does.
func (s Split) Forward(in []*graph.Node) (out, saved []*graph.Node) {
	want := s.rehearse(in)
	p := s.build(in)
	return p.out, p.choose(want)
}

// Backward returns the gradients of the inputs in Of, in this order. It takes the inputs of Forward, the activations
// that Forward saved, and the output gradients, each of its output's shape, or nil for none; for a loss the output
// gradient is 1.
//
// It builds a graph, and panics if the function or its gradient does, or if saved or v do not fit.
func (s Split) Backward(in, saved, v []*graph.Node) []*graph.Node {
	want := s.rehearse(in)
	p := s.build(in)
	p.replace(p.choose(want), saved)
	return p.gradients(s.Of, v)
}

// Saved returns the shapes of the activations that Forward saves for inputs of the given shapes. There is no mesh, so
// the function must have no collectives. It returns an error where Forward would panic.
func (s Split) Saved(backend compute.Backend, in ...shapes.Shape) (saved []shapes.Shape, err error) {
	defer func() {
		if thrown := recover(); thrown != nil {
			err = fmt.Errorf("autodiff: building the graph: %v", thrown)
		}
	}()
	g := graph.NewGraph(backend, "")
	defer g.Finalize()
	_, values := s.Forward(parameters(g, in))
	for _, n := range values {
		saved = append(saved, n.Shape())
	}
	return saved, nil
}

// rehearse builds the function and its gradient in a scratch graph, and returns which values to save.
func (s Split) rehearse(in []*graph.Node) choice {
	p, v, end := s.again(in)
	defer end()
	return p.neededBy(p.gradients(s.Of, v))
}

// again builds the function in a scratch graph, with parameters as output gradients.
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

// distribute sets a graph's mesh to that of another one.
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
			panic(fmt.Errorf("autodiff: Split.Of has %d: give indices, below %d, of inputs that are floats", i,
				len(in)))
		}
	}
}

// pass is a function as built in a graph.
type pass struct {
	in, out []*graph.Node
	made    []*graph.Node // in order of creation, without those inside loops, branches and other functions
	last    *graph.Node   // the last one created
	v       []*graph.Node // output gradients, if the backward pass is part of it
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

// gradients returns the gradients of the inputs for those of the outputs.
func (p pass) gradients(of []int, v []*graph.Node) []*graph.Node {
	if len(v) != len(p.out) {
		panic(fmt.Errorf("autodiff: %d gradients for the %d outputs of Split's function: give one for each, or nil",
			len(v), len(p.out)))
	}
	// The sum is never computed; its gradient with respect to an output is v.
	sum := graph.Const(p.in[0].Graph(), float32(0))
	for i, y := range p.out {
		if v[i] == nil {
			continue
		}
		if !v[i].Shape().Equal(y.Shape()) || !y.DType().IsFloat() {
			panic(fmt.Errorf("autodiff: a gradient of shape %s for output %d of Split's function, of shape %s: they "+
				"must be equal, and floats", v[i].Shape(), i, y.Shape()))
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
