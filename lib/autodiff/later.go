package autodiff

import (
	"fmt"
	"slices"

	"github.com/gomlx/gomlx/core/graph"
)

// BackwardFirst and [Split.BackwardLater] are Backward in two programs: BackwardFirst returns the gradients of the
// first inputs in Of, and the values that BackwardLater needs for the others. A pipeline stage can thus send the
// gradient of its input before it computes those of its weights (Qi et al. 2023, "Zero Bubble Pipeline Parallelism",
// §1). The values are the costly ones of those that both programs need, chosen as in Forward, and the operands of
// matmuls in the first program that the second needs as well, which are in memory anyway, such as the output gradient
// of each matmul.
//
// saved is what Forward saved, or nil if it saved nothing: values of the forward pass that both need are then passed
// on, too.
//
// It builds a graph, and panics if Backward does, or if first is not from 0 to the length of Of.
func (s Split) BackwardFirst(first int, in, saved, v []*graph.Node) (grads, forLater []*graph.Node) {
	want := s.rehearseLater(first, in, saved, v)
	b := s.backward(in, saved, v)
	return b.grads[:first], b.choose(want)
}

// BackwardLater returns the gradients of the inputs in Of from index first on, given the arguments of BackwardFirst and
// the values that it returned for this.
func (s Split) BackwardLater(first int, in, saved, v, forLater []*graph.Node) []*graph.Node {
	want := s.rehearseLater(first, in, saved, v)
	b := s.backward(in, saved, v)
	return b.with(b.choose(want), forLater, b.grads[first:])
}

// backwardPass is a function and its gradients, built in a graph.
type backwardPass struct {
	pass
	grads []*graph.Node
}

func (s Split) backward(in, saved, v []*graph.Node) backwardPass {
	var want choice
	if saved != nil {
		want = s.rehearse(in)
	}
	p := s.build(in)
	if saved != nil {
		p.replace(p.choose(want), saved)
	}
	return p.withGradients(s.Of, v)
}

// withGradients adds the backward pass to a pass, so that its values may be saved, too.
func (p pass) withGradients(of []int, v []*graph.Node) backwardPass {
	g := p.in[0].Graph()
	p.v = make([]*graph.Node, len(v))
	for i, x := range v {
		if x != nil {
			p.v[i] = graph.Identity(graph.StopGradient(x))
		}
	}
	before := len(g.Nodes())
	b := backwardPass{pass: p, grads: p.gradients(of, p.v)}
	for _, n := range g.Nodes()[before:] {
		if n.Function() == g.CurrentFunc() && !isOnce(n) {
			b.made = append(b.made, n)
		}
	}
	return b
}

// rehearseLater builds both passes in a scratch graph, and returns which values to pass on to BackwardLater.
func (s Split) rehearseLater(first int, in, saved, v []*graph.Node) choice {
	if first < 0 || first > len(s.Of) {
		panic(fmt.Errorf("autodiff: first is %d of %d gradients: give a number from 0 to %d", first, len(s.Of),
			len(s.Of)))
	}
	var want choice
	if saved != nil {
		want = s.rehearse(in)
	}
	p, fresh, end := s.again(in)
	defer end()
	for i := range fresh { // as in v
		if i < len(v) && v[i] == nil {
			fresh[i] = nil
		}
	}
	has := map[*graph.Node]bool{} // values that Forward saved
	if saved != nil {
		for _, n := range p.choose(want) {
			has[n] = true
		}
	}
	b := p.withGradients(s.Of, fresh)
	return b.neededByBoth(b.grads[:first], b.grads[first:], has)
}

// neededByBoth chooses, of the values that the first gradients compute, those that the later ones would recompute.
func (b backwardPass) neededByBoth(first, later []*graph.Node, has map[*graph.Node]bool) choice {
	shared := map[*graph.Node]bool{}
	var visit func(n *graph.Node)
	visit = func(n *graph.Node) {
		if shared[n] {
			return
		}
		shared[n] = true
		if has[n] {
			return
		}
		for _, x := range n.Inputs() {
			visit(x)
		}
	}
	for _, n := range first {
		visit(n)
	}
	multiplied := map[*graph.Node]bool{} // in matmuls for the first gradients
	for n := range shared {
		for _, x := range b.operands(n) {
			multiplied[x] = true
		}
	}
	all := b.candidates()
	c := choice{}
	places := map[*graph.Node]int{}
	for i, a := range all {
		c.keys = append(c.keys, a.key)
		op, _ := maker(a.node)
		if shared[a.node] && !has[a.node] && (costly(op) || multiplied[a.node]) {
			places[a.node] = i
		}
	}
	seen := map[*graph.Node]bool{}
	visit = func(n *graph.Node) {
		if seen[n] || has[n] {
			return
		}
		seen[n] = true
		if at, ok := places[n]; ok {
			c.saved = append(c.saved, at)
			return
		}
		for _, x := range n.Inputs() {
			visit(x)
		}
	}
	for _, n := range later {
		visit(n)
	}
	slices.Sort(c.saved)
	c.saved = slices.Compact(c.saved)
	return c
}

// operands returns the operands of a matmul in the backward pass, before they are transposed or reshaped.
func (p pass) operands(n *graph.Node) (all []*graph.Node) {
	if p.v == nil || n.Type() != graph.NodeTypeDotGeneral {
		return nil
	}
	for _, x := range n.Inputs() {
		for x.Type() == graph.NodeTypeReshape || x.Type() == graph.NodeTypeTranspose {
			x = x.Inputs()[0]
		}
		all = append(all, x)
	}
	return all
}

// with returns the nodes, computed from the given values in the place of others.
func (b backwardPass) with(others, values, nodes []*graph.Node) []*graph.Node {
	if len(others) != len(values) {
		panic(fmt.Errorf("autodiff: %d values for BackwardLater, want the %d that BackwardFirst returned", len(values),
			len(others)))
	}
	now := map[*graph.Node]*graph.Node{}
	for i, n := range others {
		if values[i].Graph() != n.Graph() || !values[i].Shape().Equal(n.Shape()) {
			panic(fmt.Errorf("autodiff: value %d for BackwardLater has shape %s, BackwardFirst returned %s: give them "+
				"in that order, as nodes of this graph", i, values[i].Shape(), n.Shape()))
		}
		now[n] = values[i]
	}
	for _, n := range b.made {
		if now[n] == nil && copied(n) {
			now[n] = recomputed(n, now)
		}
	}
	out := slices.Clone(nodes)
	for i, n := range nodes {
		if now[n] != nil {
			out[i] = now[n]
		}
	}
	return out
}

// copied reports whether a node can be copied. A node that cannot is recomputed from the inputs, which is correct, if
// costly.
func copied(n *graph.Node) bool {
	matmul := n.Type() == graph.NodeTypeDotGeneral || n.Type() == graph.NodeTypeConvGeneral
	return n.NumOutputs() == 1 && (matmul || !costly(n))
}
