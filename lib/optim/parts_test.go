package optim_test

import (
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/xla"
)

// lockstep builds what n ranks do into one graph: each runs up to a sum, where it waits until all others have come.
func lockstep(n int, build func(rank int, sum func(*graph.Node) *graph.Node) []*graph.Node) [][]*graph.Node {
	results := make([][]*graph.Node, n)
	var total *graph.Node // of the sum that all have come to
	ranks := make([]func() (*graph.Node, bool), n)
	for rank := range n {
		next, stop := iter.Pull(func(yield func(*graph.Node) bool) {
			results[rank] = build(rank, func(x *graph.Node) *graph.Node {
				yield(x)
				return total
			})
		})
		defer stop()
		ranks[rank] = next
	}
	for {
		var sum *graph.Node
		came := 0
		for _, next := range ranks {
			if x, ok := next(); ok {
				if came++; came == 1 {
					sum = x
				} else {
					sum = graph.Add(sum, x)
				}
			}
		}
		if came == 0 {
			return results
		}
		if came != n {
			panic(fmt.Errorf("%d of %d ranks come to a sum", came, n))
		}
		total = sum
	}
}

// cutting is a way to cut a parameter.
type cutting struct {
	dims  []int
	ranks int
	axis  int // -1: flat
	// of the flat run on each rank
	length int
}

// The flat runs and the cut rows hold whole blocks of 4, the block of allRules' Adam8bit.
var cuttings = []cutting{
	{[]int{7, 11}, 2, -1, 40},
	{[]int{7, 11}, 3, -1, 28},
	{[]int{7, 11}, 5, -1, 16},
	{[]int{3}, 3, -1, 4}, // two ranks have nothing but padding
	{[]int{}, 2, -1, 4},
	{[]int{2, 3, 5}, 3, -1, 12},
	{[]int{6, 20}, 3, 0, 0},
	{[]int{6, 20}, 5, 1, 0},
	{[]int{8}, 2, 0, 0},
	{[]int{2, 3, 8}, 2, 0, 0},
	{[]int{2, 3, 8}, 3, 1, 0},
	{[]int{2, 3, 8}, 2, 2, 0},
	{[]int{6, 20}, 1, 0, 0},
}

func (c cutting) spec() params.Spec { return params.New("w", dtypes.Float32, c.dims...) }

// part is a rank's; the node and the sum may be nil.
func (c cutting) part(offset *graph.Node, sum func(*graph.Node) *graph.Node) optim.Part {
	if c.axis < 0 {
		return optim.Flat{Length: c.length, Offset: offset, Sum: sum}
	}
	return optim.Cut{Axis: c.axis, Ranks: c.ranks, Sum: sum}
}

// of cuts a rank's part out of the whole. Padding is NaN.
func (c cutting) of(whole *graph.Node, rank int) *graph.Node {
	if c.axis < 0 {
		n := c.spec().Size()
		flat := graph.Pad(graph.Reshape(whole, n), graph.Const(whole.Graph(), float32(math.NaN())), compute.PadAxis{End: c.ranks*c.length - n})
		return graph.Slice(flat, graph.AxisRange(rank*c.length, (rank+1)*c.length))
	}
	specs := make([]graph.SliceAxisSpec, len(c.dims))
	for i := range specs {
		specs[i] = graph.AxisRange()
	}
	size := c.dims[c.axis] / c.ranks
	specs[c.axis] = graph.AxisRange(rank*size, (rank+1)*size)
	return graph.Slice(whole, specs...)
}

// join puts the ranks' parts of an array together again, cut to the elements of the whole.
func join(parts []*graph.Node, axis int, whole *graph.Node) *graph.Node {
	n := whole.Shape().Size()
	joined := graph.Concatenate(parts, axis)
	flat := graph.Reshape(joined, joined.Shape().Size())
	return graph.Reshape(graph.Slice(flat, graph.AxisRange(0, n)), whole.Shape().Dimensions...)
}

// allRules are all rules, and combinations.
func allRules() []ruleCase {
	eight := optim.Adam8bitRule{AdamWRule: optim.AdamW(0.01), Block: 4, Least: 1}
	return append(exactRules(),
		ruleCase{name: "Adam8bit", rule: eight, onXLA: true},
		ruleCase{name: "Grouped and scheduled", rule: optim.Scheduled(
			optim.Grouped(optim.SGD(1), optim.Group{Has: optim.Named("w"), Rule: optim.Adafactor(0)}), optim.Warmup{Steps: 5})})
}

// The parts of all ranks, put together, are after three steps what the whole is, with all states.
func TestPartsEqualWhole(t *testing.T) {
	const steps = 3
	for _, r := range allRules() {
		for _, c := range cuttings {
			name := fmt.Sprintf("%s, %v on %d ranks along axis %d", r.name, c.dims, c.ranks, c.axis)
			tree := params.Tree{c.spec()}
			random := rand.New(rand.NewPCG(3, 4))
			args := normal(tree, random)
			for range steps {
				args = append(args, normal(tree, random)...)
			}
			listed, err := optim.StatesOfParts(r.rule, tree, []optim.Part{c.part(nil, nil)})
			if err != nil {
				t.Fatal(err)
			}
			var compared []string // of the outputs: names, for each the part's and the whole's
			out := mustCall(t, func(in []*graph.Node) []*graph.Node {
				g := in[0].Graph()
				// train makes all steps and returns the parameter and the states.
				train := func(w *graph.Node, part optim.Part, states []optim.State, grad func(step int) *graph.Node) []*graph.Node {
					s := make([]*graph.Node, len(states))
					for k := range s {
						s[k] = graph.Zeros(g, states[k].Shape)
					}
					ws := []*graph.Node{w}
					for step := 1; step <= steps; step++ {
						ws, s = optim.ApplyToParts(r.rule, tree, []optim.Part{part}, ws, []*graph.Node{grad(step)}, s, graph.Const(g, int32(step)))
					}
					return append(ws, s...)
				}
				whole := train(in[0], nil, r.rule.States(tree[0], nil), func(step int) *graph.Node { return in[step] })
				ranks := lockstep(c.ranks, func(rank int, sum func(*graph.Node) *graph.Node) []*graph.Node {
					part := c.part(graph.Const(g, int32(rank*c.length)), sum)
					return train(c.of(in[0], rank), part, listed, func(step int) *graph.Node { return c.of(in[step], rank) })
				})
				var outputs []*graph.Node
				compared = nil
				for k := range whole {
					name, axis := "w", max(c.axis, 0)
					if k > 0 {
						name, axis = listed[k-1].Name, listed[k-1].Axis
					}
					parts := make([]*graph.Node, c.ranks)
					for rank := range parts {
						parts[rank] = ranks[rank][k]
					}
					if axis < 0 {
						for _, part := range parts { // each has the whole
							outputs, compared = append(outputs, part, whole[k]), append(compared, name)
						}
					} else {
						outputs, compared = append(outputs, join(parts, axis, whole[k]), whole[k]), append(compared, name)
					}
				}
				return outputs
			}, args...)
			for k, what := range compared {
				got, want := floats(t, out[2*k]), floats(t, out[2*k+1])
				if strings.HasSuffix(what, ".max") && c.axis > 0 {
					slices.Sort(got) // blocks come in another order
					slices.Sort(want)
				}
				if !slices.EqualFunc(got, want, near) {
					t.Errorf("%s: %s is %v, of the whole %v", name, what, got, want)
				}
			}
		}
	}
}

// On a mesh of three devices, as one program, with flat runs and rows cut, each rule does what it does to the whole.
func TestPartsOnMesh(t *testing.T) {
	const ranks, steps = 3, 2
	mesh, err := devicetest.Open(t, ranks).Mesh(xla.Axis("data", ranks))
	if err != nil {
		t.Fatal(err)
	}
	tree := params.Tree{params.New("flat", dtypes.Float32, 5, 7), params.New("rows", dtypes.Float32, 6, 4)}
	const length = 12 // of the flat parts, whose last element is padding
	onRank := func(g *graph.Graph) []optim.Part {
		var offset *graph.Node
		var sum func(*graph.Node) *graph.Node
		if g != nil {
			offset = graph.MulScalar(collective.Rank(g, "data"), length)
			sum = func(x *graph.Node) *graph.Node { return collective.AllReduce(x, collective.Sum, "data") }
		}
		return []optim.Part{optim.Flat{Length: length, Offset: offset, Sum: sum}, optim.Cut{Ranks: ranks, Sum: sum}}
	}
	// A parameter as it is placed: joined along axis 0.
	placed := func(values []*tensors.Tensor) []any {
		padded := append(slices.Clone(tensors.MustCopyFlatData[float32](values[0])), float32(math.NaN()))
		return []any{padded, values[1]}
	}
	rules := slices.DeleteFunc(allRules(), func(r ruleCase) bool { return !r.onXLA })
	random := rand.New(rand.NewPCG(13, 14))
	initial := normal(tree, random)
	in := []xla.Placement{xla.Replicated(), xla.Shard(0, "data"), xla.Shard(0, "data")} // step, gradients
	out := []xla.Placement{}
	var values []any               // of each rule: parameters, states
	var wholes [][]*tensors.Tensor // the same for the whole
	for _, r := range rules {
		listed, err := optim.StatesOfParts(r.rule, tree, onRank(nil))
		if err != nil {
			t.Fatal(err)
		}
		values = append(values, placed(initial)...)
		out = append(out, xla.Shard(0, "data"), xla.Shard(0, "data"))
		for _, s := range listed {
			shape, placement := s.Shape.Clone(), xla.Replicated()
			if s.Axis >= 0 {
				shape.Dimensions[s.Axis] *= ranks
				placement = xla.Shard(s.Axis, "data")
			}
			values, out = append(values, tensors.FromShape(shape)), append(out, placement)
		}
		wholes = append(wholes, append(slices.Clone(initial), zeros(t, optim.States(r.rule, tree))...))
	}
	program, err := xla.Compile(mesh, func(in []*graph.Node) (all []*graph.Node) {
		step, grads, in := in[0], in[1:3], in[3:]
		parts := onRank(step.Graph())
		for _, r := range rules {
			listed, err := optim.StatesOfParts(r.rule, tree, parts)
			if err != nil {
				panic(err)
			}
			n := 2 + len(listed)
			w, s := optim.ApplyToParts(r.rule, tree, parts, in[:2], grads, in[2:n], step)
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
		for i, r := range rules {
			wholes[i] = mustCall(t, oneStep(r.rule, tree), slices.Concat(wholes[i][:2], grads, wholes[i][2:], []*tensors.Tensor{number})...)
			for k, whole := range wholes[i] {
				joined, err := results[len(values)].Merge()
				if err != nil {
					t.Fatal(err)
				}
				values = append(values, results[len(values)])
				got, want := floats(t, joined), floats(t, whole)
				if got = got[:len(want)]; !slices.EqualFunc(got, want, nearOnXLA) {
					t.Errorf("%s, step %d: output %d is %v, of the whole %v", r.name, step, k, got, want)
				}
			}
		}
	}
}

func nearOnXLA(a, b float64) bool { return math.Abs(a-b) <= 2e-7+5e-6*math.Abs(b) }

func TestPartsRefused(t *testing.T) {
	matrix := params.Tree{params.New("w", dtypes.Float32, 4, 6)}
	for _, c := range []struct {
		parts []optim.Part
		want  string
	}{
		{[]optim.Part{nil}, ""},
		{[]optim.Part{optim.Cut{Axis: 1, Ranks: 3}}, ""},
		{[]optim.Part{optim.Flat{Length: 5}}, ""},
		{nil, "0 parts for the 1 parameters"},
		{[]optim.Part{optim.Cut{Axis: 2, Ranks: 1}}, `the part of "w": it is cut along axis 2 of the dimensions [4 6]: choose one from 0 to 1`},
		{[]optim.Part{optim.Cut{Axis: -1, Ranks: 1}}, "along axis -1"},
		{[]optim.Part{optim.Cut{Axis: 1, Ranks: 4}}, "axis 1 of the dimensions [4 6] is cut in 4"},
		{[]optim.Part{optim.Cut{}}, "is cut in 0"},
		{[]optim.Part{optim.Flat{}}, "it has 0 elements"},
	} {
		_, err := optim.StatesOfParts(optim.Adafactor(0), matrix, c.parts)
		refused(t, c.parts, err, c.want)
	}
	flat := tensors.FromValue([]float32{1, 2, 3, 4, 5})
	sum := func(x *graph.Node) *graph.Node { return x }
	for _, c := range []struct {
		rule optim.Rule
		part func(g *graph.Graph) optim.Part
		want string
	}{
		{optim.SGD(1), func(*graph.Graph) optim.Part { return optim.Flat{Length: 5} }, ""}, // needs neither
		{optim.LAMB(1), func(g *graph.Graph) optim.Part {
			return optim.Flat{Length: 5, Offset: graph.Const(g, int32(0)), Sum: sum}
		}, ""},
		{optim.LAMB(1), func(g *graph.Graph) optim.Part { return optim.Flat{Length: 5, Offset: graph.Const(g, int32(0))} }, "set the Sum"},
		{optim.LAMB(1), func(*graph.Graph) optim.Part { return optim.Flat{Length: 5, Sum: sum} }, "set its Offset"},
		{optim.LAMB(1), func(g *graph.Graph) optim.Part {
			return optim.Flat{Length: 5, Offset: graph.Const(g, float32(0)), Sum: sum}
		}, "set its Offset"},
		{optim.SGD(1), func(*graph.Graph) optim.Part { return optim.Flat{Length: 6} }, "it must have dimensions [6]"},
		{optim.SGD(1), func(*graph.Graph) optim.Part { return optim.Cut{} }, "is cut in 0"},
	} {
		_, err := call(func(in []*graph.Node) []*graph.Node {
			u := optim.Update{Spec: matrix[0], Part: c.part(in[0].Graph()), Param: in[0], Grad: in[0], Step: graph.Const(in[0].Graph(), int32(1))}
			for range c.rule.States(u.Spec, u.Part) {
				u.States = append(u.States, graph.ZerosLike(in[0]))
			}
			w, _ := c.rule.Update(u)
			return []*graph.Node{w}
		}, flat)
		refused(t, c.want, err, c.want)
	}
}
