package autodiff

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"regexp"
	"slices"
	"strconv"

	"github.com/gomlx/gomlx/core/graph"
)

// costly says of which operations the results are kept rather than made again. A barrier is a wish to keep something.
//
// It also says which are not to be copied: GoMLX's copy of an all-reduce or a barrier with one operand is that operand,
// and a copied loop would go on taking old values from outside.
func costly(n *graph.Node) bool {
	switch n.Type() {
	case graph.NodeTypeDotGeneral, graph.NodeTypeConvGeneral, graph.NodeTypeFFT, graph.NodeTypeSort,
		graph.NodeTypeCall, graph.NodeTypeWhile, graph.NodeTypeIf, graph.NodeTypeAllReduce,
		graph.NodeTypeFusedDense, graph.NodeTypeFusedQuantizedDense, graph.NodeTypeFusedAttentionQKVProjection,
		graph.NodeTypeFusedScaledDotProductAttention:
		return true
	}
	return barrier(n)
}

func barrier(n *graph.Node) bool { return n.Type() == graph.NodeTypeOptimizationBarrier }

// candidate is a value that may be kept. Its key says how it is made of the inputs, so that it is the same in each
// graph that the function is built in; of values with equal keys the order is the same.
type candidate struct {
	node *graph.Node
	key  uint64
}

// choice is which of the candidates are kept.
type choice struct {
	keys []uint64 // of all candidates
	kept []int
}

// candidates returns all that may be kept, in the order of their keys.
func (p pass) candidates() []candidate {
	keys := map[*graph.Node]uint64{}
	for i, x := range p.in {
		keys[x] = digest(fmt.Sprint("input ", i, x.Shape()))
	}
	for i, x := range p.v {
		if x != nil {
			keys[x] = digest(fmt.Sprint("gradient ", i, x.Shape()))
		}
	}
	operand := map[*graph.Node]bool{}
	for _, n := range p.made {
		for _, x := range p.operands(n) {
			operand[x] = true
		}
	}
	dear := map[*graph.Node]bool{} // something costly went into it, or it is that itself
	var all []candidate
	for _, n := range p.made {
		op, _ := maker(n)
		dear[n] = costly(n) && !barrier(n) || slices.ContainsFunc(n.Inputs(), func(x *graph.Node) bool { return dear[x] })
		if (costly(op) && dear[op] || operand[n] && dear[n]) && n.NumOutputs() == 1 {
			all = append(all, candidate{n, key(n, keys)})
		}
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Compare(a.key, b.key) })
	return all
}

// key says how a node is made of the inputs, given their keys, and adds its own and others to these.
func key(n *graph.Node, keys map[*graph.Node]uint64) uint64 {
	if known, ok := keys[n]; ok {
		return known
	}
	text, in := how(n), n.Inputs()
	if isOnce(n) { // what it is made of may differ from graph to graph
		in = nil
	}
	for _, x := range in {
		text += fmt.Sprintf(" %x", key(x, keys))
	}
	keys[n] = digest(text)
	return keys[n]
}

// numbered is what differs from graph to graph in a node's text: the numbers of nodes, and of functions that are
// called.
var numbered = regexp.MustCompile(`#\d+|Call\([^,]*`)

// how says how a node is made, but not of what.
func how(n *graph.Node) string { return numbered.ReplaceAllString(n.String(), "") }

func digest(text string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(text))
	return h.Sum64()
}

var splitIndex = regexp.MustCompile(`index=(\d+)`)

// maker returns the operation that made a value, and which of its outputs the value is.
func maker(n *graph.Node) (op *graph.Node, output int) {
	if n.Type() != graph.NodeTypeSplitNode {
		return n, 0
	}
	found := splitIndex.FindStringSubmatch(n.String())
	if found == nil {
		panic(fmt.Errorf("autodiff: GoMLX writes %q of an output, and v0.28.2 wrote its index: build with that version", n))
	}
	output, _ = strconv.Atoi(found[1])
	return n.Inputs()[0], output
}

// neededBy chooses what the gradients need.
func (p pass) neededBy(gradients []*graph.Node) choice {
	all := p.candidates()
	// of a value, and of all values of an operation, whose gradient may take them by itself
	places := map[*graph.Node][]int{}
	var c choice
	for i, a := range all {
		places[a.node] = []int{i}
		if op, _ := maker(a.node); op != a.node {
			places[op] = append(places[op], i)
		}
		c.keys = append(c.keys, a.key)
	}
	seen := map[*graph.Node]bool{}
	var visit func(n *graph.Node)
	visit = func(n *graph.Node) {
		if seen[n] {
			return
		}
		seen[n] = true
		if at, ok := places[n]; ok {
			c.kept = append(c.kept, at...)
			return
		}
		for _, x := range n.Inputs() {
			visit(x)
		}
	}
	for _, n := range gradients {
		visit(n)
	}
	// What the gradient's loops take from outside are inputs of what is inside.
	g := p.in[0].Graph()
	for _, n := range g.Nodes()[p.last.Id()+1:] {
		if n.Function() != g.CurrentFunc() {
			visit(n)
		}
	}
	slices.Sort(c.kept)
	c.kept = slices.Compact(c.kept)
	return c
}

// choose returns the nodes that are to be kept.
func (p pass) choose(c choice) []*graph.Node {
	all := p.candidates()
	if !slices.EqualFunc(all, c.keys, func(a candidate, key uint64) bool { return a.key == key }) {
		panic(errors.New("autodiff: Split's function builds another graph each time: have it depend on nothing but " +
			"its arguments and their shapes"))
	}
	kept := make([]*graph.Node, len(c.kept))
	for i, at := range c.kept {
		kept[i] = all[at].node
	}
	return kept
}
