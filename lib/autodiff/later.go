package autodiff

import (
	"fmt"
	"slices"

	"github.com/gomlx/gomlx/core/graph"
)

// BackwardFirst is Backward in two programs: it returns the gradients of the first inputs that Of lists, so many of
// them, and what BackwardLater wants to make those of the others. So a stage of a pipeline sends the gradient of its
// input on, before it makes those of its weights (Qi et al. 2023, "Zero Bubble Pipeline Parallelism", §1). What is left
// for later is what is costly of all that both need, chosen as Forward does, and what the first program multiplies,
// which it has in memory anyway: so the gradient of each product's result is, which both multiply by something.
//
// kept is what Forward kept, or nil, where nothing was: then what both need of the forward pass is left, too.
//
// It builds a graph, and panics where Backward does, and if first is not from 0 to the length of Of.
func (s Split) BackwardFirst(first int, in, kept, v []*graph.Node) (grads, left []*graph.Node) {
	want := s.rehearseLater(first, in, kept, v)
	b := s.backward(in, kept, v)
	return b.grads[:first], b.choose(want)
}

// BackwardLater returns the gradients of the inputs that Of lists from place first on, given what BackwardFirst was,
// and what it left.
func (s Split) BackwardLater(first int, in, kept, v, left []*graph.Node) []*graph.Node {
	want := s.rehearseLater(first, in, kept, v)
	b := s.backward(in, kept, v)
	return b.with(b.choose(want), left, b.grads[first:])
}

// backwardPass is a function and its gradients as built in a graph.
type backwardPass struct {
	pass
	grads []*graph.Node
}

func (s Split) backward(in, kept, v []*graph.Node) backwardPass {
	var want choice
	if kept != nil {
		want = s.rehearse(in)
	}
	p := s.build(in)
	if kept != nil {
		p.replace(p.choose(want), kept)
	}
	return p.withGradients(s.Of, v)
}

// withGradients adds the backward pass to a pass, so that what it makes may be kept, too.
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

// rehearseLater builds both passes in a graph that is thrown away, and returns what is to be left for later.
func (s Split) rehearseLater(first int, in, kept, v []*graph.Node) choice {
	if first < 0 || first > len(s.Of) {
		panic(fmt.Errorf("autodiff: the first %d gradients of %d: give a number from 0 to %d", first, len(s.Of), len(s.Of)))
	}
	var want choice
	if kept != nil {
		want = s.rehearse(in)
	}
	p, fresh, end := s.again(in)
	defer end()
	for i := range fresh { // only those that there are
		if i < len(v) && v[i] == nil {
			fresh[i] = nil
		}
	}
	has := map[*graph.Node]bool{} // of what Forward kept
	if kept != nil {
		for _, n := range p.choose(want) {
			has[n] = true
		}
	}
	b := p.withGradients(s.Of, fresh)
	return b.neededByBoth(b.grads[:first], b.grads[first:], has)
}

// neededByBoth chooses, of what the first gradients need, what the later ones would make again; not what they have.
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
	multiplied := map[*graph.Node]bool{} // by the first ones
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
			c.kept = append(c.kept, at)
			return
		}
		for _, x := range n.Inputs() {
			visit(x)
		}
	}
	for _, n := range later {
		visit(n)
	}
	slices.Sort(c.kept)
	c.kept = slices.Compact(c.kept)
	return c
}

// operands are what a product of the backward pass multiplies, before that is turned about.
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

// with returns nodes made of the given values in place of others.
func (b backwardPass) with(others, values, nodes []*graph.Node) []*graph.Node {
	if len(others) != len(values) {
		panic(fmt.Errorf("autodiff: %d values for later, where BackwardFirst leaves %d: give them all", len(values),
			len(others)))
	}
	now := map[*graph.Node]*graph.Node{}
	for i, n := range others {
		if values[i].Graph() != n.Graph() || !values[i].Shape().Equal(n.Shape()) {
			panic(fmt.Errorf("autodiff: value %d for later has shape %s, BackwardFirst's %s: give them in its "+
				"order, and of this graph",
				i, values[i].Shape(), n.Shape()))
		}
		now[n] = values[i]
	}
	for _, n := range b.made {
		if now[n] == nil && copied(n) {
			now[n] = remade(n, now)
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

// copied says of which nodes there can be a copy. What cannot be copied stays as it is, which is right, if costly: it
// is made again from the start.
func copied(n *graph.Node) bool {
	product := n.Type() == graph.NodeTypeDotGeneral || n.Type() == graph.NodeTypeConvGeneral
	return n.NumOutputs() == 1 && (product || !costly(n))
}
