package xla

import (
	"fmt"

	"github.com/gomlx/gomlx/core/graph"
)

// While runs body while cond holds, each from the state of the turn before, and
// returns the last state. The state's shapes do not change. cond returns a boolean
// scalar. Both may use values from outside, and loops may be nested.
//
// It is graph.While with what that leaves to its callers: parameters with names of
// their own, and constants that are not shared between cond, body and what is around
// them (docs/upstream.md, "constants across closures"). Like that it has no gradient.
func While(state []*graph.Node, cond func(state []*graph.Node) *graph.Node, body func(state []*graph.Node) []*graph.Node) []*graph.Node {
	if len(state) == 0 {
		panic(fmt.Errorf("While has no state: it could never end"))
	}
	g := state[0].Graph()
	closure := func(of func([]*graph.Node) []*graph.Node) *graph.Function {
		clearScalars(g)
		defer clearScalars(g)
		return graph.NewClosure(g, func(g *graph.Graph) []*graph.Node {
			inside := make([]*graph.Node, len(state))
			for i, s := range state {
				inside[i] = graph.Parameter(g, g.UniqueName("state"), s.Shape())
			}
			return of(inside)
		})
	}
	holds := closure(func(s []*graph.Node) []*graph.Node { return []*graph.Node{cond(s)} })
	return graph.While(holds, closure(body), state...)
}
