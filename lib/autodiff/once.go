package autodiff

import "github.com/gomlx/gomlx/core/graph"

// Once returns the node that build creates, and calls build only once per graph and key. Use it for values that are the
// same wherever they are needed, such as a device's number. The node is not part of a [Split]'s function, whose two
// passes may be in two graphs with a node each; it must depend on no other node.
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

// isOnce reports whether [Once] created a node.
func isOnce(n *graph.Node) bool {
	of, _ := n.Graph().State(onceNodes{}).(map[*graph.Node]bool)
	return of[n]
}

// Prepare calls prepare for a graph now, and for each scratch graph that [Split] builds for it. Use it to attach state
// that graph functions read.
func Prepare(g *graph.Graph, prepare func(g *graph.Graph)) {
	g.AttachState(prepared{}, prepare)
	prepare(g)
}

type prepared struct{}
