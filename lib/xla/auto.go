package xla

import (
	"fmt"

	"github.com/gomlx/compute/distributed"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
)

// CompileAuto is [Compile] for a graph function that is written for one device and sees full tensors: the compiler
// splits it over the mesh and inserts the collectives (XLA's SPMD partitioner, GoMLX's AutoSharding). The layout places
// inputs and outputs on the mesh; collective.Constrain places values between them. The compiler replicates an output
// whose axis does not divide evenly; Call returns an error for that.
func CompileAuto[F graph.ExecGraphFn](m *Mesh, fn F, layout Shardings) (*Program, error) {
	p, err := newProgram(m, fn, layout)
	if err != nil {
		return nil, err
	}
	// GoMLX repeats the last placement only for slices of inputs.
	inputs := max(len(layout.In), inputsOf(fn))
	if len(layout.In) == 0 {
		inputs = 0
	}
	in, out := make([]*distributed.ShardingSpec, inputs), make([]*distributed.ShardingSpec, len(layout.Out))
	for i := range in {
		in[i], _ = placementOf(layout.In, i).Spec(m.DeviceMesh) // checked by newProgram
	}
	for i, placement := range layout.Out {
		out[i], _ = placement.Spec(m.DeviceMesh)
	}
	p.auto = true
	p.exec.AutoSharding(m.DeviceMesh).WithDeviceAssignment(m.devices())
	p.exec.WithInputShardingSpecs(in...).WithOutputShardingSpecs(out...)
	return p, nil
}

// Constrain tells the compiler how to place x on the mesh. Use collective.Constrain.
//
// GoMLX has placements only for the inputs and outputs of functions, so it calls a function that returns its input. The
// function's name identifies the placement for the gradient.
func Constrain(x *graph.Node, p Placement) *graph.Node {
	g := x.Graph()
	mesh, ok := MeshOf(g)
	if !ok {
		panic(fmt.Errorf("Constrain without a mesh: compile the graph function with xla.CompileAuto"))
	}
	if g.DistributedStrategy() != distributed.AutoSharding {
		panic(fmt.Errorf("Constrain in a graph function compiled with xla.Compile, not with CompileAuto: its devices " +
			"have values of their own: use collectives to move them"))
	}
	if p.lastAxis() >= x.Rank() {
		panic(fmt.Errorf("placement %v splits axis %d of %v: choose an axis of the tensor", p, p.lastAxis(), x.Shape()))
	}
	spec, err := p.fullSpec(mesh, x.Rank())
	if err != nil {
		panic(err)
	}
	name := g.UniqueName(constraints.name(p.String(), p))
	f := graph.NewFunctionWithSharding(g, name, func(g *graph.Graph) ([]*graph.Node, []*distributed.ShardingSpec) {
		return []*graph.Node{graph.ShardedParameter(g, "x", x.Shape(), spec)}, []*distributed.ShardingSpec{spec}
	})
	return f.Call(x)[0]
}

// constraints are the placements of Constrain.
var constraints = numbered[Placement]{prefix: "constrained_"}

// GoMLX has no gradient for calls. That of a constraint is the same constraint, that of an exchange the exchange
// backwards.
func init() {
	before, had := graph.VJPRegistration[graph.NodeTypeCall]
	graph.VJPRegistration[graph.NodeTypeCall] = func(node *graph.Node, v []*graph.Node,
		shape shapes.Shape) []*graph.Node {
		if p, ok := constraints.named(calledName(node)); ok {
			return []*graph.Node{Constrain(v[0], p)}
		}
		if e, ok := exchanges.named(calledName(node)); ok {
			return e.transposed(node.Inputs(), v[0])
		}
		if !had {
			panic(fmt.Errorf("a call of function %q has no gradient in GoMLX: write its body in the graph",
				calledName(node)))
		}
		return before(node, v, shape)
	}
}
