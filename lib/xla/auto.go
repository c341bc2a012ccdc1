package xla

import (
	"fmt"
	"strconv"
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
	// GoMLX repeats the last placement of inputs for slices only.
	inputs := max(len(layout.In), inputsOf(fn))
	if len(layout.In) == 0 {
		inputs = 0
	}
	in, out := make([]*distributed.ShardingSpec, inputs), make([]*distributed.ShardingSpec, len(layout.Out))
	for i := range in {
		in[i], _ = placementOf(layout.In, i).Spec(m.DeviceMesh) // newProgram has checked them
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
		panic(fmt.Errorf("Constrain is for graph functions compiled with xla.CompileAuto: with xla.Compile each " +
			"device has its own values, and collectives move them"))
	}
	if p.lastAxis() >= x.Rank() {
		panic(fmt.Errorf("placement %v splits axis %d of %v", p, p.lastAxis(), x.Shape()))
	}
	spec, err := p.fullSpec(mesh, x.Rank())
	if err != nil {
		panic(err)
	}
	name := g.UniqueName(fmt.Sprintf("%s%d", constrained, constraints.number(p)))
	f := graph.NewFunctionWithSharding(g, name, func(g *graph.Graph) ([]*graph.Node, []*distributed.ShardingSpec) {
		return []*graph.Node{graph.ShardedParameter(g, "x", x.Shape(), spec)}, []*distributed.ShardingSpec{spec}
	})
	return f.Call(x)[0]
}

// constrained begins the names of the functions that Constrain makes. The number of
// the placement follows, and then perhaps "_" and what makes the name unique.
const constrained = "constrained_"

var constraints = numbered[Placement]{prefix: constrained}

// numbered numbers what names of functions stand for. Equal ones have one number.
type numbered[T fmt.Stringer] struct {
	prefix string
	sync.Mutex
	all []T
}

func (n *numbered[T]) number(one T) int {
	n.Lock()
	defer n.Unlock()
	for i, other := range n.all {
		if other.String() == one.String() {
			return i
		}
	}
	n.all = append(n.all, one)
	return len(n.all) - 1
}

// of returns what the name of a function stands for.
func (n *numbered[T]) of(name string) (T, bool) {
	n.Lock()
	defer n.Unlock()
	return named(n.all, n.prefix, name)
}

// named returns the one of all whose number a function's name has: the prefix, the number, and then perhaps "_" and
// what makes the name unique.
func named[T any](all []T, prefix, name string) (one T, ok bool) {
	after, ours := strings.CutPrefix(name, prefix)
	digits, _, _ := strings.Cut(after, "_")
	i, err := strconv.Atoi(digits)
	if !ours || err != nil || i < 0 || i >= len(all) {
		return one, false
	}
	return all[i], true
}

// GoMLX has no gradient for calls. That of a constraint is the same constraint, and that of a shift the shift back.
func init() {
	before, had := graph.VJPRegistration[graph.NodeTypeCall]
	graph.VJPRegistration[graph.NodeTypeCall] = func(node *graph.Node, v []*graph.Node, shape shapes.Shape) []*graph.Node {
		if p, ok := constraints.of(calledName(node)); ok {
			return []*graph.Node{Constrain(v[0], p)}
		}
		if s, ok := shifts.of(calledName(node)); ok {
			return []*graph.Node{Shift{s.Axis, -s.By}.Of(v[0])}
		}
		if !had {
			panic(fmt.Errorf("a call of function %q has no gradient in GoMLX: write its body in the graph", calledName(node)))
		}
		return before(node, v, shape)
	}
}
