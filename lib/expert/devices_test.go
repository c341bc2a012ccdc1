package expert

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/xla"
)

// layout says how tokens and experts are divided over the axes of a mesh.
type layout struct {
	mesh                     []xla.MeshAxis
	batch, sequence, experts []string
	hops                     bool
}

func (l layout) String() string {
	return fmt.Sprintf("experts along %v of %v, hierarchical %v", l.experts, l.mesh, l.hops)
}

func layouts() []layout {
	a, b := xla.Axis("a", 2), xla.Axis("b", 2)
	one := func(n int) layout {
		return layout{[]xla.MeshAxis{xla.Axis("a", n)}, []string{"a"}, nil, []string{"a"}, false}
	}
	of := func(batch, sequence, experts string) layout {
		return layout{[]xla.MeshAxis{a, b}, strings.Fields(batch), strings.Fields(sequence), strings.Fields(experts),
			false}
	}
	hierarchical := of("a b", "", "a b")
	hierarchical.hops = true
	return []layout{hierarchical, one(1), one(2), one(4), of("a b", "", "a b"), of("a b", "", "b"), of("a", "b", "b"),
		of("a", "b", "a b"), of("", "a b", "a"), of("a", "b", "")}
}

// run computes the problem on the layout's devices: as run of a problem.
func (l layout) run(t *testing.T, p problem, of dtypes.DType) (all [][]float64) {
	t.Helper()
	n, names := 1, []string{}
	for _, axis := range l.mesh {
		n, names = n*axis.Size, append(names, axis.Name)
	}
	mesh := must.Get(devicetest.Open(t, 4).Mesh(l.mesh...))(t)
	tokens := xla.Shard(0, l.batch...)
	if len(l.batch) == 0 {
		tokens = xla.Replicated()
	}
	if len(l.sequence) > 0 {
		tokens = tokens.And(1, l.sequence...)
	}
	in, out := []xla.Placement{tokens, tokens}, []xla.Placement{tokens, tokens, tokens}
	var others [][]string // axes along which a gradient is summed
	for _, s := range p.tree() {
		place, sum := xla.Replicated(), names
		if strings.Contains(s.Name, ".experts.") && len(l.experts) > 0 {
			place, sum = xla.Shard(0, l.experts...), nil
			for _, name := range names {
				if !strings.Contains(strings.Join(l.experts, " "), name) {
					sum = append(sum, name)
				}
			}
		}
		in, out, others = append(in, place), append(out, place), append(others, sum)
	}
	layer := p.layer()
	layer.Axes, layer.Sequence, layer.Hierarchical = l.experts, l.sequence, l.hops
	program := must.Get(xla.Compile(mesh, func(in []*graph.Node) []*graph.Node {
		all := p.applied(of, n, func(in nodes) nodes {
			y, term := layer.Apply(p.named(in[1:]), "moe", in[0])
			return nodes{y, term}
		})(in)
		for i, axes := range others {
			if len(axes) > 0 {
				all[3+i] = collective.AllReduce(all[3+i], collective.Sum, axes...)
			}
		}
		return all
	}, xla.In(in...).Gives(out...)))(t)
	defer program.Close()
	var args []any
	for _, x := range p.inputs() {
		args = append(args, x)
	}
	for _, x := range must.Get(program.Call(args...))(t) {
		all = append(all, tensors.MustCopyFlatData[float64](must.Get(x.Merge())(t)))
	}
	return all
}

// spreadProblems can be divided over four devices.
func spreadProblems() (all []problem) {
	random := rand.New(rand.NewPCG(3, 4))
	for i, c := range []Config{
		{Experts: 8, PerToken: 2, Normalize: true, Balance: 0.2, ZLoss: 0.1},
		{Experts: 4, PerToken: 1, Capacity: 1, Balance: 0.2},
		{Experts: 16, PerToken: 4, Router: Sigmoid, Normalize: true, Scale: 2.5, Groups: 4, GroupsPerToken: 2,
			BiasRate: 0.1, Balance: 0.1, Capacity: 0.75},
		{Experts: 4, PerToken: 3, Router: Sigmoid},
	} {
		c.Hidden = 3 + i
		all = append(all, newProblem(reference{c, 4 + i, i%2 == 0, 8}, 4, random))
	}
	return all
}

// TestDevices: on several devices, results, terms and gradients are those of the second implementation, which has one.
func TestDevices(t *testing.T) {
	for i, p := range spreadProblems() {
		want, names := p.want()
		for j, l := range layouts() {
			if i == 0 || (i+j)%2 == 0 || l.hops {
				t.Run(l.String(), func(t *testing.T) { near(t, p, names, l.run(t, p, dtypes.Float64), want, 1e-7) })
			}
			if j == 3+i || j == 0 { // by kernels
				near(t, p, names, l.run(t, p, dtypes.Float32), want, 1e-4)
			}
		}
	}
}

// TestBetween cuts the program of a layer whose experts, and other tokens of whose sequences, are on ranks with
// programs of their own: counts and rows move in the forward pass, and rows there and back in the backward pass.
// (Packages that run such programs test their results.)
func TestBetween(t *testing.T) {
	mesh := must.Get(devicetest.One().Mesh(xla.Axis("data", 1)))(t)
	p := spreadProblems()[2]
	layer := p.layer()
	layer.Axes, layer.Sequence = []string{"expert"}, []string{"ring"}
	var in []shapes.Shape
	for _, x := range p.inputs() {
		in = append(in, x.Shape())
	}
	for i, s := range p.tree() {
		if strings.Contains(s.Name, ".experts.") {
			in[2+i].Dimensions[0] /= 2
		}
	}
	rank := shapes.Make(dtypes.Int32)
	cut := must.Get(xla.NewSegments(mesh, func(in []*graph.Node) []*graph.Node {
		n := len(in) - 2
		collective.Between(in[0].Graph(), "expert", 2, in[n])
		collective.Between(in[0].Graph(), "ring", 2, in[n+1])
		return p.applied(dtypes.Float32, 2, func(in nodes) nodes {
			y, term := layer.Apply(p.named(in[1:]), "moe", in[0])
			return nodes{y, term}
		})(in[:n])
	}, append(in, rank, rank)...))(t)
	got := map[string]int{}
	for _, e := range cut.Exchanges {
		got[fmt.Sprint(e.Axis, " ", e.Kind, " ", e.Rows)]++
	}
	// From each rank come at most 3 tokens for each expert, the capacity of ⌈0.75·4·16/16⌉, of a sequence.
	rows, choices := 2*p.batch*(p.Experts/2)*3, p.batch*p.length*p.PerToken
	want := map[string]int{"ring all-to-all 0": 2, "expert all-to-all 0": 1,
		fmt.Sprintf("expert all-to-all-v %d", rows): 2, fmt.Sprintf("expert all-to-all-v %d", choices): 2}
	if !maps.Equal(got, want) {
		t.Errorf("exchanges %v, want %v", got, want)
	}
}
