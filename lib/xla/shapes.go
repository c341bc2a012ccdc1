package xla

import (
	"fmt"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
)

// Shapes returns the shapes of what a graph function returns on one device of the mesh, from those of what the device
// gives it. Nothing is compiled. What the function panics with is an error.
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

// Text returns a graph function's program for one device as StableHLO, which is what XLA gets. Nothing is compiled.
// What the function panics with is an error.
func (b *Backend) Text(fn func(in []*graph.Node) []*graph.Node, in ...shapes.Shape) (text string, err error) {
	defer recoverGraph(&err)
	g := graph.NewGraph(b, "program") // GoMLX would choose another name each time
	defer g.Finalize()
	out := fn(inputs(g, in))
	main := g.CurrentFunc() // which there is once something is built
	main.Return(out, nil)
	program, err := hloFunction(unwrap(functionIn(main))).Builder.Build()
	return string(program), err
}

// inputs are a graph's parameters of these shapes.
func inputs(g *graph.Graph, in []shapes.Shape) (nodes []*graph.Node) {
	for i, s := range in {
		nodes = append(nodes, graph.Parameter(g, fmt.Sprint("in", i), s))
	}
	return nodes
}
