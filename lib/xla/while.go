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
//
// Where the body has collectives, all devices must turn equally often: XLA ends the
// process, after a while, when one waits for others that do not come.
func While(state []*graph.Node, cond func(state []*graph.Node) *graph.Node,
	body func(state []*graph.Node) []*graph.Node) []*graph.Node {
	if len(state) == 0 {
		panic(fmt.Errorf("While has no state: it could never end"))
	}
	inside := func(of func([]*graph.Node) []*graph.Node) *graph.Function {
		return closure(state[0].Graph(), func(g *graph.Graph) []*graph.Node {
			parameters := make([]*graph.Node, len(state))
			for i, s := range state {
				parameters[i] = graph.Parameter(g, g.UniqueName("state"), s.Shape())
			}
			return of(parameters)
		})
	}
	holds := inside(func(s []*graph.Node) []*graph.Node { return []*graph.Node{cond(s)} })
	return graph.While(holds, inside(body), state...)
}

// If returns what then returns where the boolean scalar holds, else what otherwise
// returns; only one of them runs. Their results have the same shapes. Both may use
// values from outside. Like graph.If it has no gradient. Where a branch has
// collectives, all devices must take the same one, or XLA ends the process.
func If(holds *graph.Node, then, otherwise func() []*graph.Node) []*graph.Node {
	branch := func(of func() []*graph.Node) *graph.Function {
		return closure(holds.Graph(), func(*graph.Graph) []*graph.Node { return of() })
	}
	return graph.If(holds, branch(then), branch(otherwise))
}

// closure is graph.NewClosure with constants of its own.
func closure(g *graph.Graph, of func(g *graph.Graph) []*graph.Node) *graph.Function {
	clearScalars(g)
	defer clearScalars(g)
	return graph.NewClosure(g, of)
}
