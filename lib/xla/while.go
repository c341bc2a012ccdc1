package xla

import (
	"fmt"

	"github.com/gomlx/gomlx/core/graph"
)

// While runs body while cond returns true, each time on the previous state, and returns the last state. The state's
// shapes do not change. cond returns a boolean scalar. Both may use values from outside, and loops may be nested.
//
// It is graph.While with unique parameter names, and without sharing constants between cond, body and the outside
// (docs/upstream.md, "constants across closures"). Like graph.While it has no gradient.
//
// If the body has collectives, all devices must iterate equally often: otherwise the program returns an error on CPUs
// after the others have waited two minutes for the missing device, and XLA's own collectives (on CUDA, and with
// [NoKernels]) end the process.
func While(state []*graph.Node, cond func(state []*graph.Node) *graph.Node,
	body func(state []*graph.Node) []*graph.Node) []*graph.Node {
	if len(state) == 0 {
		panic(fmt.Errorf("While without a state would never end: give at least one node"))
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

// If returns the result of then if the boolean scalar holds is true, else that of otherwise; only one of them runs.
// Their results must have the same shapes. Both may use values from outside. Like graph.If it has no gradient. If a
// branch has collectives, all devices must take the same one, as for While.
func If(holds *graph.Node, then, otherwise func() []*graph.Node) []*graph.Node {
	branch := func(of func() []*graph.Node) *graph.Function {
		return closure(holds.Graph(), func(*graph.Graph) []*graph.Node { return of() })
	}
	return graph.If(holds, branch(then), branch(otherwise))
}

// closure is graph.NewClosure without shared constants.
func closure(g *graph.Graph, of func(g *graph.Graph) []*graph.Node) *graph.Function {
	clearScalars(g)
	defer clearScalars(g)
	return graph.NewClosure(g, of)
}
