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

// costly reports whether the results of an operation are saved rather than recomputed. A barrier is a request to save
// its operands.
//
// These operations must not be copied either: GoMLX copies an all-reduce or a barrier with one operand as that operand,
// and a copied loop would still use the old values from outside.
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

// candidate is a value that may be saved. Its key says how it is computed from the inputs, so it is the same in each
// graph that the function is built in. Values with equal keys are in the same order in all graphs.
type candidate struct {
	node *graph.Node
	key  uint64
}

// choice says which of the candidates are saved.
type choice struct {
	keys  []uint64 // of all candidates
	saved []int
}

// candidates returns the values that may be saved, in the order of their keys.
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
	dear := map[*graph.Node]bool{} // costly, or computed from something costly
	var all []candidate
	for _, n := range p.made {
		op, _ := maker(n)
		dear[n] = costly(n) && !barrier(n) ||
			slices.ContainsFunc(n.Inputs(), func(x *graph.Node) bool { return dear[x] })
		if (costly(op) && dear[op] || operand[n] && dear[n]) && n.NumOutputs() == 1 {
			all = append(all, candidate{n, key(n, keys)})
		}
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Compare(a.key, b.key) })
	return all
}

// key returns a node's key, given those of the inputs, and adds the keys of all nodes between to keys.
func key(n *graph.Node, keys map[*graph.Node]uint64) uint64 {
	if known, ok := keys[n]; ok {
		return known
	}
	text, in := how(n), n.Inputs()
	if isOnce(n) { // its operands may differ from graph to graph
		in = nil
	}
	for _, x := range in {
		text += fmt.Sprintf(" %x", key(x, keys))
	}
	keys[n] = digest(text)
	return keys[n]
}

// numbered are the parts of a node's text that differ from graph to graph: the numbers of nodes and of called
// functions.
var numbered = regexp.MustCompile(`#\d+|Call\([^,]*`)

// how says how a node is computed, without its operands.
func how(n *graph.Node) string { return numbered.ReplaceAllString(n.String(), "") }

func digest(text string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(text))
	return h.Sum64()
}

var splitIndex = regexp.MustCompile(`index=(\d+)`)

// maker returns the operation that computed a value, and which of its outputs the value is.
func maker(n *graph.Node) (op *graph.Node, output int) {
	if n.Type() != graph.NodeTypeSplitNode {
		return n, 0
	}
	found := splitIndex.FindStringSubmatch(n.String())
	if found == nil {
		panic(fmt.Errorf("autodiff: GoMLX describes an output as %q, without the index that v0.28.2 wrote: build "+
			"with that version", n))
	}
	output, _ = strconv.Atoi(found[1])
	return n.Inputs()[0], output
}

// neededBy chooses the candidates that the gradients need.
func (p pass) neededBy(gradients []*graph.Node) choice {
	all := p.candidates()
	// indices by value, and by operation, whose gradient may use all its values
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
			c.saved = append(c.saved, at...)
			return
		}
		for _, x := range n.Inputs() {
			visit(x)
		}
	}
	for _, n := range gradients {
		visit(n)
	}
	// Values that the gradient's loops use from outside are inputs of nodes inside.
	g := p.in[0].Graph()
	for _, n := range g.Nodes()[p.last.Id()+1:] {
		if n.Function() != g.CurrentFunc() {
			visit(n)
		}
	}
	slices.Sort(c.saved)
	c.saved = slices.Compact(c.saved)
	return c
}

// choose returns the nodes to save.
func (p pass) choose(c choice) []*graph.Node {
	all := p.candidates()
	if !slices.EqualFunc(all, c.keys, func(a candidate, key uint64) bool { return a.key == key }) {
		panic(errors.New("autodiff: Split's function builds a different graph each time: let it depend on nothing " +
			"but its arguments and their shapes"))
	}
	saved := make([]*graph.Node, len(c.saved))
	for i, at := range c.saved {
		saved[i] = all[at].node
	}
	return saved
}
