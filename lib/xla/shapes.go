package xla

import (
	"fmt"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
)

// Shapes returns the shapes of what a graph function returns on one device of the mesh, from those of what the device gives it.
// Nothing is compiled. What the function panics with is an error.
func (m *Mesh) Shapes(fn func(in []*graph.Node) []*graph.Node, in ...shapes.Shape) (out []shapes.Shape, err error) {
	defer func() {
		if thrown := recover(); thrown != nil {
			err = fmt.Errorf("building the graph: %v", thrown)
		}
	}()
	g := graph.NewGraph(m.backend, "")
	defer g.Finalize()
	if err := g.SetSPMD(m.DeviceMesh); err != nil {
		return nil, err
	}
	nodes := make([]*graph.Node, len(in))
	for i, s := range in {
		nodes[i] = graph.Parameter(g, fmt.Sprint("in", i), s)
	}
	for _, n := range fn(nodes) {
		out = append(out, n.Shape())
	}
	return out, nil
}
