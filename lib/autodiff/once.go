package autodiff

import "github.com/gomlx/gomlx/core/graph"

// Once returns what build makes, which is built once in a graph for each key: what is the same wherever it is asked
// for, such as a device's number. It is no part of what a [Split]'s function computes, whose passes may be in two
// graphs and each have their own; it must depend on no other node.
func Once(g *graph.Graph, key any, build func() *graph.Node) *graph.Node {
	at := onceKey{key}
	if n, ok := g.State(at).(*graph.Node); ok {
		return n
	}
	of, _ := g.State(onceNodes{}).(map[*graph.Node]bool)
	if of == nil {
		of = map[*graph.Node]bool{}
		g.AttachState(onceNodes{}, of)
	}
	before := len(g.Nodes())
	made := build()
	for _, n := range g.Nodes()[before:] {
		of[n] = true
	}
	g.AttachState(at, made)
	return made
}

type (
	onceKey   struct{ key any }
	onceNodes struct{}
)

// isOnce says whether [Once] made a node.
func isOnce(n *graph.Node) bool {
	of, _ := n.Graph().State(onceNodes{}).(map[*graph.Node]bool)
	return of[n]
}

// Prepare calls prepare for a graph now, and for each scratch graph that [Split] builds for it. Use it to attach state
// that the graph function reads.
func Prepare(g *graph.Graph, prepare func(g *graph.Graph)) {
	g.AttachState(prepared{}, prepare)
	prepare(g)
}

type prepared struct{}
