package optim_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/xla"
)

// On a mesh of three devices, in one program, with flat parts, cut rows, and columns on several ranks, each optimizer
// equals that for the full parameter.
func TestPartsOnMesh(t *testing.T) {
	const ranks, steps = 3, 2
	mesh, err := devicetest.Open(t, ranks).Mesh(xla.Axis("data", ranks))
	if err != nil {
		t.Fatal(err)
	}
	tree := params.Tree{params.New("flat", dtypes.Float32, 5, 7), params.New("rows", dtypes.Float32, 6, 4),
		params.New("columns", dtypes.Float32, 4, 5)}
	const length = 12 // of the flat parts, whose last element is padding
	columns := &params.Cut{Axis: 1, Index: [][]int{{4, 0, 1}, {1, 2, -1}, {3, 1, 2}}}
	onRank := func(g *graph.Graph) []optim.Part {
		var offset, counted *graph.Node
		var sum func(*graph.Node) *graph.Node
		if g != nil {
			rank := collective.Rank(g, "data")
			offset = graph.MulScalar(rank, length)
			var all [][]bool
			for r := range ranks {
				all = append(all, columns.Counted(r))
			}
			counted = graph.Gather(graph.Const(g, all), graph.Reshape(rank, 1))
			sum = func(x *graph.Node) *graph.Node { return collective.AllReduce(x, collective.Sum, "data") }
		}
		return []optim.Part{optim.Flat{Length: length, Offset: offset, Sum: sum}, optim.Cut{Ranks: ranks, Sum: sum},
			optim.Cut{Axis: 1, Ranks: ranks, Length: columns.Length(), Counted: counted, Sum: sum}}
	}
	// Parameters as they are placed.
	placed := func(values []*tensors.Tensor) []any {
		padded := append(slices.Clone(tensors.MustCopyFlatData[float32](values[0])), float32(math.NaN()))
		stacked, err := columns.Stack(values[2])
		if err != nil {
			t.Fatal(err)
		}
		return []any{padded, values[1], stacked}
	}
	parameters := []xla.Placement{xla.Shard(0, "data"), xla.Shard(0, "data"), xla.Shard(1, "data")}
	optimizers := slices.DeleteFunc(allOptimizers(), func(r optimizerCase) bool { return !r.onXLA })
	for i, r := range optimizers {
		if !optim.Joins(r.opt, tree[2], onRank(nil)[2]) { // Adam8bit, which refuses such a part
			optimizers[i].opt = optim.Grouped(r.opt, optim.Group{Has: optim.Named(tree[2].Name),
				Optimizer: optim.AdamW(0.01)})
		}
	}
	random := rand.New(rand.NewPCG(13, 14))
	initial := normal(tree, random)
	in := append([]xla.Placement{xla.Replicated()}, parameters...) // step, gradients
	out := []xla.Placement{}
	var values []any               // of each opt: parameters, states
	var wholes [][]*tensors.Tensor // the same for the whole
	var outputs [][]optim.State    // of each opt: names and axes
	for _, r := range optimizers {
		listed, err := optim.StatesOfParts(r.opt, tree, onRank(nil))
		if err != nil {
			t.Fatal(err)
		}
		values = append(values, placed(initial)...)
		out = append(out, parameters...)
		for _, s := range listed {
			shape, placement := s.Shape.Clone(), xla.Replicated()
			if s.Axis >= 0 {
				shape.Dimensions[s.Axis] *= ranks
				placement = xla.Shard(s.Axis, "data")
			}
			values, out = append(values, tensors.FromShape(shape)), append(out, placement)
		}
		start := slices.Clone(initial)
		for _, s := range tree {
			for _, state := range r.opt.States(s, nil) {
				start = append(start, tensors.FromShape(state.Shape))
			}
		}
		wholes = append(wholes, start)
		outputs = append(outputs, append([]optim.State{{Spec: tree[0]}, {Spec: tree[1]}, {Spec: tree[2], Axis: 1}},
			listed...))
	}
	program, err := xla.Compile(mesh, func(in []*graph.Node) (all []*graph.Node) {
		step, grads, in := in[0], in[1:4], in[4:]
		parts := onRank(step.Graph())
		for _, r := range optimizers {
			listed, err := optim.StatesOfParts(r.opt, tree, parts)
			if err != nil {
				panic(err)
			}
			n := 3 + len(listed)
			w, s := optim.ApplyToParts(r.opt, tree, parts, in[:3], grads, in[3:n], step)
			all, in = slices.Concat(all, w, s), in[n:]
		}
		return all
	}, xla.In(append(in, out...)...).Gives(out...))
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	for step := 1; step <= steps; step++ {
		grads := normal(tree, random)
		number := tensors.FromScalar(int32(step))
		results, err := program.Call(append(append([]any{number}, placed(grads)...), values...)...)
		if err != nil {
			t.Fatal(err)
		}
		values = values[:0]
		for i, r := range optimizers {
			wholes[i] = mustCall(t, func(in []*graph.Node) []*graph.Node {
				last := len(in) - 1
				w, s := optim.Apply(r.opt, tree, in[:3], in[3:6], in[6:last], in[last])
				return append(w, s...)
			}, slices.Concat(wholes[i][:3], grads, wholes[i][3:], []*tensors.Tensor{number})...)
			for k, whole := range wholes[i] {
				joined, err := results[len(values)].Merge()
				if err != nil {
					t.Fatal(err)
				}
				values = append(values, results[len(values)])
				if state := outputs[i][k]; state.Axis >= 0 && strings.HasPrefix(state.Name, "columns") {
					columns := &params.Cut{Axis: state.Axis, Index: columns.Index}
					if joined, err = columns.Join(joined, 5); err != nil {
						t.Fatal(err)
					}
				}
				got, want := floats(t, joined), floats(t, whole)
				if got = got[:len(want)]; !slices.EqualFunc(got, want, nearOnXLA) {
					t.Errorf("%s, step %d: %s is %v, of the whole %v", r.name, step, outputs[i][k].Name, got, want)
				}
			}
		}
	}
}

func nearOnXLA(a, b float64) bool { return math.Abs(a-b) <= 2e-7+5e-6*math.Abs(b) }
