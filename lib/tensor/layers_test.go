package tensor_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/tensor"
	"github.com/shardbook/shardbook/lib/xla"
)

// Recomputation under Checkpoint, with its communication, does not change the gradients.
func TestCheckpoint(t *testing.T) {
	const n = 3
	mesh := meshOf(t, devicetest.Open(t, n), xla.Axis("tensor", n))
	r := rand.New(rand.NewPCG(9, 1))
	args := []any{random(r, 1, n, 2, 3, 4).tensor(), random(r, 1, n, 4, 2).tensor(), random(r, 1, n, 2, 4).tensor(),
		random(r, 1, n, 4).tensor()}
	for _, w := range variants {
		p := onRanks(t, mesh, 0, 4, func(in []*graph.Node) []*graph.Node {
			var out []*graph.Node
			for _, checkpoint := range []bool{false, true} {
				x := graph.Sin(in[0])
				if checkpoint {
					x = x.Checkpoint()
				}
				bias := w.group.Replicated(in[3:])[0]
				x = pair(w.group, graph.Mul(x, graph.ExpandLeftToRank(bias, 3)), in[1], in[2])
				x = pair(w.group, graph.Sin(x), in[1], in[2])
				if checkpoint {
					x = x.StopCheckpoint()
				}
				out = append(out, graph.Gradient(graph.ReduceAllSum(graph.Square(x)), in...)...)
			}
			return out
		})
		got := call(t, p, args...)
		for i, want := range got[:4] {
			var exact []float64
			for _, v := range want {
				exact = append(exact, float64(v))
			}
			if d := distance(t, w.name, got[4+i], exact, largest(exact)); !(d <= 0x1p-20) {
				t.Errorf("%s: gradient %d under Checkpoint differs by %g of its largest value", w.name, i, d)
			}
		}
	}
}

// A group along an axis of one device, and one with no axis, add nothing to the graph.
func TestAlone(t *testing.T) {
	mesh := meshOf(t, devicetest.Open(t, 1), xla.Axis("tensor", 1))
	groups := []tensor.Group{{}, {Axis: "tensor"}, {Axis: "tensor", Sequence: true, Overlap: true}}
	p := onRanks(t, mesh, 0, 2, func(in []*graph.Node) []*graph.Node {
		for _, group := range groups {
			if same := []*graph.Node{group.Enter(in[0]), group.Leave(in[0]), group.Tokens(in[0], 1),
				group.Replicated(in)[0],
				group.SumCopies(in[0], 0, &params.Cut{})}; slices.ContainsFunc(same,
				func(x *graph.Node) bool { return x != in[0] }) {
				t.Errorf("%+v adds nodes to the graph of one device", group)
			}
			if group.Size(in[0].Graph()) != 1 || group.Alone() != (group.Axis == "") {
				t.Errorf("%+v has %d devices, alone %t", group, group.Size(in[0].Graph()), group.Alone())
			}
			if group.Rank(in[0].Graph()).DType() != dtypes.Int32 {
				t.Errorf("%+v: the rank is not an int32", group)
			}
		}
		return in[:1]
	})
	if err := p.Prepare(zeros(1, 1, 2, 3), zeros(1, 3)); err != nil {
		t.Fatal(err)
	}
}

func TestErrors(t *testing.T) {
	mesh := meshOf(t, devicetest.Open(t, 2), xla.Axis("tensor", 2))
	group := tensor.Group{Axis: "tensor"}
	ring := tensor.Group{Axis: "tensor", Sequence: true, Overlap: true}
	cut := &params.Cut{Index: [][]int{{0, 1}, {0, 2}}}
	for _, c := range []struct {
		want string
		of   func(x *graph.Node) *graph.Node // (3,5)
	}{
		{"want (B,T,C)", func(x *graph.Node) *graph.Node { return group.Columns(x, []*graph.Node{x}, dot)[0] }},
		{"want (B,T,N/n)", func(x *graph.Node) *graph.Node { return group.Rows(x, x, dot) }},
		{"2 devices do not divide the 3 tokens", func(x *graph.Node) *graph.Node {
			return ring.Rows(graph.ExpandAxes(x, 0), x, dot)
		}},
		{"no axis \"model\"", func(x *graph.Node) *graph.Node { return tensor.Group{Axis: "model"}.Enter(x) }},
		{"axis 0 of", func(x *graph.Node) *graph.Node { return ring.Tokens(x, 0) }},
		{"along axis 0 has length 2", func(x *graph.Node) *graph.Node { return group.SumCopies(x, 0, cut) }},
		{"the cut is for 3 ranks and the group has 2", func(x *graph.Node) *graph.Node {
			return group.SumCopies(x, 0, &params.Cut{Index: [][]int{{0}, {0}, {0}}})
		}},
		{"has no axis 2", func(x *graph.Node) *graph.Node { return group.SumCopies(x, 2, cut) }},
		{"want (V/n,C) and integers", func(x *graph.Node) *graph.Node { return group.Embed(x, x) }},
		{"want (B,T,V/n) and (B,T)", func(x *graph.Node) *graph.Node { return group.CrossEntropy(x, x, 10) }},
		{"for a vocabulary of 8: want 4", func(x *graph.Node) *graph.Node {
			return group.CrossEntropy(x, graph.Zeros(x.Graph(), shapes.Make(dtypes.Int32, 3)), 8)
		}},
	} {
		p, err := xla.Compile(mesh, c.of, xla.In(xla.Replicated()).Gives(xla.Replicated()))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Prepare(zeros(3, 5)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q in it", err, c.want)
		}
		p.Close()
	}
}
