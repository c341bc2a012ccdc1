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
	since := len(g.Nodes())
	b := backwardPass{pass: p, grads: p.gradients(of, p.v)}
	b.made = append(b.made, made(g, since)...)
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
	shared, multiplied := map[*graph.Node]bool{}, map[*graph.Node]bool{} // multiplied: in matmuls
	walk(first, func(n *graph.Node) bool {
		shared[n] = true
		for _, x := range b.operands(n) {
			multiplied[x] = true
		}
		return !has[n]
	})
	c := choice{}
	places := map[*graph.Node]int{}
	for i, a := range b.candidates() {
		c.keys = append(c.keys, a.key)
		op, _ := maker(a.node)
		if shared[a.node] && !has[a.node] && (costly(op) || multiplied[a.node]) {
			places[a.node] = i
		}
	}
	walk(later, func(n *graph.Node) bool {
		at, candidate := places[n]
		if candidate {
			c.saved = append(c.saved, at)
		}
		return !candidate && !has[n]
	})
	slices.Sort(c.saved)
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
	now := newValues(others, values, "forLater", "BackwardFirst")
	for _, n := range b.made {
		// A node that cannot be copied is recomputed from the inputs, which is correct, if costly.
		matmul := n.Type() == graph.NodeTypeDotGeneral || n.Type() == graph.NodeTypeConvGeneral
		if now[n] == nil && (n.NumOutputs() == 1 || n.Type() == graph.NodeTypeCall) && (matmul || !costly(n)) {
			now[n] = recomputed(n, now)
		}
	}
	return current(nodes, now)
}
