package engine

import (
	"fmt"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
)

// summing is a graph function that adds some of its values up over ranks: between returns the sum of the x of those along an
// axis of the plan, or of all ranks for "".
type summing func(in []*graph.Node, between func(x *graph.Node, axis string) *graph.Node) []*graph.Node

// phase is what ranks add up at once, before the function goes on: some vectors, by axis.
type phase struct {
	axes  []string
	sizes []int
}

// sumOf is one of a function's sums: where it lies in its phase's vectors.
type sumOf struct{ phase, vector, offset, size int }

// phasesOf finds a function's sums, in the order in which it makes them, on a scratch graph. Sums of anything but float32 are an
// error, and so is what the function panics with.
func phasesOf(in []*graph.Node, fn summing) (all []sumOf, phases []phase, err error) {
	defer func() {
		if thrown := recover(); thrown != nil {
			err = asError(thrown)
		}
	}()
	g := in[0].Graph()
	phaseOf := map[*graph.Node]int{} // the first phase behind what a node needs
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
			panic(fmt.Errorf("engine: the rule sums %s over the ranks, which add up float32", x.Shape()))
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
	return all, phases, nil
}

// asError is what a graph function has panicked with.
func asError(thrown any) error {
	if err, ok := thrown.(error); ok {
		return err
	}
	return fmt.Errorf("%v", thrown)
}

// before is the function that makes the vectors of a phase, of the inputs and the vectors of the phases before it.
func before(fn summing, all []sumOf, phases []phase, number, inputs int) func(in []*graph.Node) []*graph.Node {
	return func(in []*graph.Node) []*graph.Node {
		wanted := make([][]*graph.Node, len(phases[number].axes))
		i := 0
		fn(in[:inputs], func(x *graph.Node, _ string) *graph.Node {
			s := all[i]
			i++
			if s.phase < number {
				return known(s, phases, in[inputs:], x)
			}
			if s.phase == number {
				wanted[s.vector] = append(wanted[s.vector], graph.Reshape(x, x.Shape().Size()))
			}
			return graph.ZerosLike(x) // nothing that is wanted depends on it
		})
		var out []*graph.Node
		for _, parts := range wanted {
			out = append(out, concatenate(parts, 0))
		}
		return out
	}
}

// behind is the function once all vectors are known.
func behind(fn summing, all []sumOf, phases []phase, inputs int) func(in []*graph.Node) []*graph.Node {
	return func(in []*graph.Node) []*graph.Node {
		i := 0
		return fn(in[:inputs], func(x *graph.Node, _ string) *graph.Node {
			if len(all) == 0 { // there is one rank
				return x
			}
			i++
			return known(all[i-1], phases, in[inputs:], x)
		})
	}
}

// known takes a sum out of the vectors.
func known(s sumOf, phases []phase, vectors []*graph.Node, like *graph.Node) *graph.Node {
	at := s.vector
	for _, p := range phases[:s.phase] {
		at += len(p.axes)
	}
	part := graph.Slice(vectors[at], graph.AxisRange(s.offset, s.offset+s.size))
	return graph.Reshape(part, like.Shape().Dimensions...)
}
