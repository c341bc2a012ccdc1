package engine

import (
	"fmt"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
)

// summing is a graph function that sums values over ranks: between returns the sum of the ranks' x along an axis of the
// plan, or over all ranks for "".
type summing func(in []*graph.Node, between func(x *graph.Node, axis string) *graph.Node) []*graph.Node

// phase is what ranks sum at once, before the function continues: a vector per axis.
type phase struct {
	axes  []string
	sizes []int
}

// sumOf is one of a function's sums: its position in the vectors of its phase.
type sumOf struct{ phase, vector, offset, size int }

// phasesOf finds a function's sums, in order, on a scratch graph. It panics for sums of other types than float32.
func phasesOf(in []*graph.Node, fn summing) (all []sumOf, phases []phase) {
	g := in[0].Graph()
	phaseOf := map[*graph.Node]int{} // the first phase after all sums that a node depends on
	var needs func(n *graph.Node) int
	needs = func(n *graph.Node) int {
		if at, seen := phaseOf[n]; seen {
			return at
		}
		at := 0
		for _, x := range n.Inputs() {
			if x != nil {
				at = max(at, needs(x))
			}
		}
		phaseOf[n] = at
		return at
	}
	fn(in, func(x *graph.Node, axis string) *graph.Node {
		if x.DType() != dtypes.Float32 {
			panic(fmt.Errorf("engine: the optimizer sums %s over the ranks: it must be float32", x.Shape()))
		}
		s := sumOf{phase: needs(x), size: x.Shape().Size()}
		if s.phase == len(phases) {
			phases = append(phases, phase{})
		}
		p := &phases[s.phase]
		if s.vector = slices.Index(p.axes, axis); s.vector < 0 {
			s.vector, p.axes, p.sizes = len(p.axes), append(p.axes, axis), append(p.sizes, 0)
		}
		s.offset = p.sizes[s.vector]
		p.sizes[s.vector] += s.size
		sum := graph.Parameter(g, fmt.Sprint("sum", len(all)), x.Shape())
		phaseOf[sum] = s.phase + 1
		all = append(all, s)
		return sum
	})
	return all, phases
}

// phaseFn returns the function that computes the vectors of a phase, from the inputs and the vectors of earlier phases;
// after the last phase, the function itself.
func phaseFn(fn summing, all []sumOf, phases []phase, number, inputs int) func(in []*graph.Node) []*graph.Node {
	return func(in []*graph.Node) (out []*graph.Node) {
		var wanted [][]*graph.Node
		if number < len(phases) {
			wanted = make([][]*graph.Node, len(phases[number].axes))
		}
		i := 0
		out = fn(in[:inputs], func(x *graph.Node, _ string) *graph.Node {
			if len(all) == 0 { // only one rank
				return x
			}
			s := all[i]
			i++
			if s.phase < number {
				return sumFrom(s, phases, in[inputs:], x)
			}
			if s.phase == number {
				wanted[s.vector] = append(wanted[s.vector], graph.Reshape(x, x.Shape().Size()))
			}
			return graph.ZerosLike(x) // no result depends on it
		})
		if number < len(phases) {
			out = nil
		}
		for _, parts := range wanted {
			out = append(out, concatenate(parts, 0))
		}
		return out
	}
}

// sumFrom takes a sum out of the vectors.
func sumFrom(s sumOf, phases []phase, vectors []*graph.Node, like *graph.Node) *graph.Node {
	at := s.vector
	for _, p := range phases[:s.phase] {
		at += len(p.axes)
	}
	part := graph.Slice(vectors[at], graph.AxisRange(s.offset, s.offset+s.size))
	return graph.Reshape(part, like.Shape().Dimensions...)
}
