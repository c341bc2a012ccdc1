package rank

import (
	"context"
	"fmt"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// Summing is a graph function that adds some of its values up over the ranks: sum returns the ranks' sum of x.
type Summing func(in []*graph.Node, sum func(x *graph.Node) *graph.Node) []*graph.Node

// Phases run such a function where ranks have programs of their own, with no sums in them. There is a program for all the sums
// that can be made at once, whose results the ranks then add up; one for those that need these; and so on, and at last one for
// the function's results.
type Phases struct {
	sums   []Program
	last   Program
	inputs []shapes.Shape
	sizes  []int // of the vectors of the sums, by phase
}

// Program is a compiled graph function, which runs on a device, as a xla.Portable does, or on the host, whatever device is
// given.
type Program interface {
	Call(device int, args ...any) ([]*tensors.Tensor, error)
}

// Compiler makes a program, which may use the memory of the donated inputs.
type Compiler func(fn func(in []*graph.Node) []*graph.Node, donated ...int) (Program, error)

// sumOf is one of a function's sums: of which phase it is, from 0, and where it lies in that phase's vector.
type sumOf struct{ phase, offset, size int }

// NewPhases compiles a function of inputs of the given shapes, of which some are donated to the last program. The scratch
// graph, which it frees, is to see which sums there are. Sums of anything but float32 are an error, and so is what the
// function panics with.
func NewPhases(scratch *graph.Graph, compile Compiler, fn Summing, inputs []shapes.Shape, donated ...int) (p *Phases, err error) {
	all, err := sumsOf(scratch, fn, inputs)
	if err != nil {
		return nil, err
	}
	p = &Phases{inputs: inputs}
	for _, s := range all {
		for len(p.sizes) <= s.phase {
			p.sizes = append(p.sizes, 0)
		}
		p.sizes[s.phase] += s.size
	}
	for phase := range p.sizes {
		one, err := compile(func(in []*graph.Node) []*graph.Node {
			var wanted []*graph.Node
			fn(in[:len(inputs)], known(all, in[len(inputs):], func(i int, x *graph.Node) *graph.Node {
				if all[i].phase == phase {
					wanted = append(wanted, graph.Reshape(x, x.Shape().Size()))
				}
				return graph.ZerosLike(x) // nothing that is wanted depends on it
			}))
			return []*graph.Node{graph.Concatenate(wanted, 0)}
		})
		if err != nil {
			return nil, err
		}
		p.sums = append(p.sums, one)
	}
	p.last, err = compile(func(in []*graph.Node) []*graph.Node {
		return fn(in[:len(inputs)], known(all, in[len(inputs):], nil))
	}, donated...)
	return p, err
}

// known returns what gives a function's sums out of the vectors of the phases before; other makes the others.
func known(all []sumOf, vectors []*graph.Node, other func(i int, x *graph.Node) *graph.Node) func(x *graph.Node) *graph.Node {
	i := -1
	return func(x *graph.Node) *graph.Node {
		i++
		s := all[i]
		if s.phase >= len(vectors) {
			return other(i, x)
		}
		part := graph.Slice(vectors[s.phase], graph.AxisRange(s.offset, s.offset+s.size))
		return graph.Reshape(part, x.Shape().Dimensions...)
	}
}

// sumsOf finds a function's sums, in the order in which it makes them.
func sumsOf(g *graph.Graph, fn Summing, inputs []shapes.Shape) (all []sumOf, err error) {
	defer func() {
		if thrown := recover(); thrown != nil {
			err = fmt.Errorf("rank: building the function: %v", thrown)
		}
	}()
	defer g.Finalize()
	in := make([]*graph.Node, len(inputs))
	for i, s := range inputs {
		in[i] = graph.Parameter(g, fmt.Sprint("input", i), s)
	}
	phaseOf := map[*graph.Node]int{} // the first phase behind what a node needs
	var needs func(n *graph.Node) int
	needs = func(n *graph.Node) int {
		if phase, seen := phaseOf[n]; seen {
			return phase
		}
		phase := 0
		for _, x := range n.Inputs() {
			if x != nil {
				phase = max(phase, needs(x))
			}
		}
		phaseOf[n] = phase
		return phase
	}
	var sizes []int // of the phases' vectors
	fn(in, func(x *graph.Node) *graph.Node {
		if x.DType() != dtypes.Float32 {
			panic(fmt.Errorf("the rule sums %s over the ranks, which add up float32", x.Shape()))
		}
		s := sumOf{phase: needs(x), size: x.Shape().Size()}
		if s.phase == len(sizes) {
			sizes = append(sizes, 0)
		}
		s.offset = sizes[s.phase]
		sizes[s.phase] += s.size
		sum := graph.Parameter(g, fmt.Sprint("sum", len(all)), x.Shape())
		phaseOf[sum] = s.phase + 1
		all = append(all, s)
		return sum
	})
	return all, nil
}

// Prepare compiles those programs that can be before they run, as a xla.Portable can.
func (p *Phases) Prepare() error {
	in := slices.Clone(p.inputs)
	for phase, one := range append(slices.Clone(p.sums), p.last) {
		if phase > 0 {
			in = append(in, shapes.Make(dtypes.Float32, p.sizes[phase-1]))
		}
		if early, ok := one.(interface{ Prepare(...shapes.Shape) error }); ok {
			if err := early.Prepare(in...); err != nil {
				return err
			}
		}
	}
	return nil
}

// Run calls the programs one after another. It is a collective call, in which ranks give and get what is their own; the
// sums are the same on all.
func (p *Phases) Run(ctx context.Context, g group.Group, device int, args []any) ([]*tensors.Tensor, error) {
	for _, one := range p.sums {
		out, err := one.Call(device, args...)
		if err != nil {
			return nil, err
		}
		vector, err := tensors.CopyFlatData[float32](out[0])
		if err == nil {
			err = out[0].FinalizeAll()
		}
		if err == nil {
			err = group.AllReduce(ctx, g, vector, group.Sum)
		}
		if err != nil {
			return nil, err
		}
		args = append(args, tensors.FromFlatDataAndDimensions(vector, len(vector)))
	}
	return p.last.Call(device, args...)
}
