package xla

import (
	"fmt"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
)

// Shapes returns the shapes of a graph function's results on one device of the mesh, for inputs of the given shapes on
// that device. It compiles nothing, and returns the function's panics as errors.
func (m *Mesh) Shapes(fn func(in []*graph.Node) []*graph.Node, in ...shapes.Shape) (out []shapes.Shape, err error) {
	defer recoverGraph(&err)
	g := graph.NewGraph(m.backend, "")
	defer g.Finalize()
	if err := g.SetSPMD(m.DeviceMesh); err != nil {
		return nil, err
	}
	for _, n := range fn(inputs(g, in)) {
		out = append(out, n.Shape())
	}
	return out, nil
}

// Text returns a graph function's program for one device as StableHLO, the input of XLA. It compiles nothing, and
// returns the function's panics as errors.
func (b *Backend) Text(fn func(in []*graph.Node) []*graph.Node, in ...shapes.Shape) (text string, err error) {
	defer recoverGraph(&err)
	g := graph.NewGraph(b, "program") // GoMLX would choose another name each time
	defer g.Finalize()
	out := fn(inputs(g, in))
	main := g.CurrentFunc() // exists once something is built
	main.Return(out, nil)
	program, err := hloFunction(unwrap(functionIn(main))).Builder.Build()
	return string(program), err
}

// inputs returns parameters of a graph with these shapes.
func inputs(g *graph.Graph, in []shapes.Shape) (nodes []*graph.Node) {
	for i, s := range in {
		nodes = append(nodes, graph.Parameter(g, fmt.Sprint("in", i), s))
	}
	return nodes
}
