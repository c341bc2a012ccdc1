package autodiff

import (
	"fmt"
	"slices"

	"github.com/gomlx/gomlx/core/graph"
)

// replace gives nodes other values, and recomputes from these what the function computed from the nodes. It runs before
// the gradient is built, which then uses the new values. GoMLX still sees the same nodes with their gradients; only the
// backend's values in them change. Compilers drop what nothing uses then.
func (p pass) replace(nodes, by []*graph.Node) {
	if len(by) != len(nodes) {
		panic(fmt.Errorf("autodiff: %d saved values, want the %d that Forward returned", len(by), len(nodes)))
	}
	now := map[*graph.Node]*graph.Node{}
	for i, n := range nodes {
		if by[i].Graph() != n.Graph() || !by[i].Shape().Equal(n.Shape()) {
			panic(fmt.Errorf("autodiff: saved value %d has shape %s, Forward returned %s: give them in that "+
				"order, as nodes of this graph", i, by[i].Shape(), n.Shape()))
		}
		now[n] = by[i]
	}
	for _, n := range p.made {
		if now[n] == nil {
			// A costly value that was not saved is not needed, or is hidden from us; then its old value is correct.
			if costly(n) {
				continue
			}
			if now[n] = recomputed(n, now); now[n] == nil {
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

// recomputed returns a copy of a node with the new values of its inputs, or nil if no input has one.
func recomputed(n *graph.Node, now map[*graph.Node]*graph.Node) *graph.Node {
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
