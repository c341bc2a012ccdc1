package xla

import (
	"fmt"
	"strings"
	"sync"

	"github.com/gomlx/compute/distributed"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
)

// CompileAuto makes a program of a graph function that sees whole tensors, as if
// there were one device; the compiler cuts the work along the mesh and puts the
// collectives in (AutoSharding). The layout says how inputs and outputs lie on the
// mesh; collective.Constrain says it of values between them.
//
// The compiler replicates an output whose axis does not divide evenly; Call returns
// that as an error.
func CompileAuto[F graph.ExecGraphFn](m *Mesh, fn F, layout Layout) (*Program, error) {
	p, err := newProgram(m, fn, layout)
	if err != nil {
		return nil, err
	}
	in, out := make([]*distributed.ShardingSpec, len(layout.In)), make([]*distributed.ShardingSpec, len(layout.Out))
	for i, placement := range layout.In {
		in[i], _ = placement.Spec(m.DeviceMesh) // newProgram has checked them
	}
	for i, placement := range layout.Out {
		out[i], _ = placement.Spec(m.DeviceMesh)
	}
	p.auto = true
	p.exec.AutoSharding(m.DeviceMesh).WithDeviceAssignment(m.devices()).WithInputShardingSpecs(in...).WithOutputShardingSpecs(out...)
	return p, nil
}

// Constrain tells the compiler how x shall lie on the mesh; use collective.Constrain.
//
// GoMLX says such things of functions' inputs and outputs only, so it is a function
// that returns its input. The name leads from the call to the placement when the
// gradient is made.
func Constrain(x *graph.Node, p Placement) *graph.Node {
	g := x.Graph()
	mesh, ok := MeshOf(g)
	if !ok {
		panic(fmt.Errorf("Constrain needs a mesh: compile the graph function with xla.CompileAuto"))
	}
	if g.DistributedStrategy() != distributed.AutoSharding {
		panic(fmt.Errorf("Constrain is for graph functions compiled with xla.CompileAuto: with xla.Compile each device has its own values, and collectives move them"))
	}
	if p.lastAxis() >= x.Rank() {
		panic(fmt.Errorf("placement %v splits axis %d of %v", p, p.lastAxis(), x.Shape()))
	}
	spec, err := p.fullSpec(mesh, x.Rank())
	if err != nil {
		panic(err)
	}
	name := g.UniqueName(constrained + p.key())
	placements.Store(name, p)
	f := graph.NewFunctionWithSharding(g, name, func(g *graph.Graph) ([]*graph.Node, []*distributed.ShardingSpec) {
		return []*graph.Node{graph.ShardedParameter(g, "x", x.Shape(), spec)}, []*distributed.ShardingSpec{spec}
	})
	return f.Call(x)[0]
}

// constrained begins the names of the functions that Constrain makes.
const constrained = "constrained_"

// placements has the placement of each name that Constrain has used. A name says all
// of its placement but for a number behind it, so the table stays small.
var placements sync.Map

// key returns the placement as a part of a name.
func (p Placement) key() string {
	return strings.NewReplacer("Shard", "", "And", "", "Replicated", "r", `"`, "", " ", "", "(", "", ")", "", ",", "_", ".", "__").Replace(p.String())
}

// GoMLX has no gradient for calls. That of a constraint is the same constraint.
func init() {
	before, had := graph.VJPRegistration[graph.NodeTypeCall]
	graph.VJPRegistration[graph.NodeTypeCall] = func(node *graph.Node, v []*graph.Node, shape shapes.Shape) []*graph.Node {
		if p, ok := placements.Load(calledName(node)); ok {
			return []*graph.Node{Constrain(v[0], p.(Placement))}
		}
		if !had {
			panic(fmt.Errorf("a call of function %q has no gradient in GoMLX: write its body in the graph", calledName(node)))
		}
		return before(node, v, shape)
	}
}
