package autodiff

import (
	"fmt"
	"slices"

	"github.com/gomlx/gomlx/core/graph"
)

// replace has the nodes be the given values, and what the function made of them be made of these; before the
// gradient is built, which then finds nothing else. The nodes stay what they are for GoMLX, with their gradients, but
// the backend's values in them change. What nothing then uses, compilers drop.
func (p pass) replace(nodes, by []*graph.Node) {
	if len(by) != len(nodes) {
		panic(fmt.Errorf("autodiff: %d kept values, where Forward returns %d: give them all", len(by), len(nodes)))
	}
	now := map[*graph.Node]*graph.Node{}
	for i, n := range nodes {
		if by[i].Graph() != n.Graph() || !by[i].Shape().Equal(n.Shape()) {
			panic(fmt.Errorf("autodiff: kept value %d has shape %s, Forward's %s: give them in its "+
				"order, and of this graph", i, by[i].Shape(), n.Shape()))
		}
		now[n] = by[i]
	}
	for _, n := range p.made {
		if now[n] == nil {
			// What is costly and not kept is not needed, or it is where nobody sees it; then its old value is right.
			if costly(n) {
				continue
			}
			if now[n] = remade(n, now); now[n] == nil {
				continue
			}
		}
		if n.NumOutputs() == 1 {
			value := graph.InternalBackendOutputs(now[n])[0]
			graph.InternalBackendOutputs(n)[0] = value
			op, output := maker(n)
			graph.InternalBackendOutputs(op)[output] = value
		}
	}
}

// remade returns a node made of the new values of its inputs, or nil if none has one.
func remade(n *graph.Node, now map[*graph.Node]*graph.Node) *graph.Node {
	if !slices.ContainsFunc(n.Inputs(), func(x *graph.Node) bool { return now[x] != nil }) {
		return nil
	}
	in := slices.Clone(n.Inputs())
	for i, x := range in {
		if now[x] != nil {
			in[i] = now[x]
		}
	}
	return n.CloneWithInputs(in...)
}
