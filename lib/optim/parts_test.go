package optim_test

import (
	"fmt"
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

// allOptimizers are all optimizers, and combinations of them.
func allOptimizers() []optimizerCase {
	eight := optim.Adam8bitOptimizer{AdamWOptimizer: optim.AdamW(0.01), Block: 4, Least: 1}
	return append(exactOptimizers(),
		optimizerCase{name: "Adam8bit", opt: eight, onXLA: true},
		optimizerCase{name: "Grouped and scheduled", opt: optim.Scheduled(
			optim.Grouped(optim.SGD(1), optim.Group{Has: optim.Named("w"), Optimizer: optim.Adafactor(0)}),
			optim.Warmup{Steps: 5})})
}

// After three steps the joined parts of all ranks equal the full parameter and its states. Ranks with the same index
// have the same bits for it, and padding is still 0.
func TestPartsEqualWhole(t *testing.T) {
	const steps = 3
	for _, r := range allOptimizers() {
		for _, c := range cuttings {
			if c.index != nil && !optim.Joins(r.opt, c.spec(), c.part()) {
				continue // Adam8bit, which refuses it
			}
			name := fmt.Sprintf("%s, %v on %d ranks along axis %d, indices %v", r.name, c.dims, c.ranks, c.axis,
				c.index)
			tree := params.Tree{c.spec()}
			random := rand.New(rand.NewPCG(3, 4))
			args := normal(tree, random)
			for range steps {
				args = append(args, normal(tree, random)...)
			}
			listed := must(optim.StatesOfParts(r.opt, tree, []optim.Part{c.part()}))
			var compared []optim.State // of the outputs: names and axes, for each the parts' and the whole's
			out := mustCall(t, func(in []*graph.Node) (outputs []*graph.Node) {
				compared = nil
				compare := func(state optim.State, parts, whole *graph.Node) {
					outputs, compared = append(outputs, parts, whole), append(compared, state)
				}
				want := trained(r.opt, tree, nil, in[0], in[1:])
				ranks := lockstep(c.ranks, func(rank int, sum func(*graph.Node) *graph.Node) []*graph.Node {
					var grads []*graph.Node
					for _, grad := range in[1:] {
						grads = append(grads, c.of(grad, rank))
					}
					return trained(r.opt, tree, c.onRank(in[0].Graph(), rank, sum), c.of(in[0], rank), grads)
				})
				for k, state := range append([]optim.State{{Spec: tree[0], Axis: max(c.axis, 0)}}, listed...) {
					parts := make([]*graph.Node, c.ranks)
					for rank := range parts {
						parts[rank] = ranks[rank][k]
					}
					switch {
					case state.Axis < 0:
						for _, part := range parts { // each has the whole
							compare(state, part, want[k])
						}
					case c.index != nil:
						compare(state, graph.Concatenate(parts, state.Axis), want[k])
					default:
						compare(state, join(parts, state.Axis, want[k]), want[k])
					}
				}
				return outputs
			}, args...)
			for k, state := range compared {
				if c.index != nil && state.Axis >= 0 {
					out[2*k] = c.joined(t, name, state, out[2*k], out[2*k+1])
				}
				got, want := floats(t, out[2*k]), floats(t, out[2*k+1])
				if strings.HasSuffix(state.Name, ".max") && c.axis > 0 && c.index == nil {
					slices.Sort(got) // blocks come in another order
					slices.Sort(want)
				}
				if !slices.EqualFunc(got, want, near) {
					t.Errorf("%s: %s is %v, of the whole %v", name, state.Name, got, want)
				}
			}
		}
	}
}

// joined joins the ranks' arrays by their indices. Those of several ranks with an index must be equal, and padding of
// the parameter must be 0; that of states has no meaning.
func (c cutting) joined(t *testing.T, name string, state optim.State, stacked, like *tensors.Tensor) *tensors.Tensor {
	t.Helper()
	cut := &params.Cut{Axis: state.Axis, Index: c.index}
	joined := must(cut.Join(stacked, like.Shape().Dim(state.Axis)))
	again := must(cut.Stack(joined))
	marks := make([]int32, like.Size()) // 1 where there is no padding
	for i := range marks {
		marks[i] = 1
	}
	marked := must(cut.Stack(tensors.FromFlatDataAndDimensions(marks, like.Shape().Dimensions...)))
	want := floats(t, again)
	for i, got := range floats(t, stacked) {
		if inside := tensors.MustCopyFlatData[int32](marked)[i] == 1; (inside || state.Name == "w") && got != want[i] {
			t.Errorf("%s: element %d of the ranks' %s is %g, want %g as the first rank has it, or 0 in padding", name,
				i, state.Name, got, want[i])
		}
	}
	return joined
}

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
		{[]optim.Part{optim.Cut{Axis: 2, Ranks: 1}},
			`the part of "w": it is cut along axis 2 of the dimensions [4 6]: choose one from 0 to 1`},
		{[]optim.Part{optim.Cut{Axis: -1, Ranks: 1}}, "along axis -1"},
		{[]optim.Part{optim.Cut{Axis: 1, Ranks: 4}}, "axis 1 of the dimensions [4 6] is cut in 4"},
		{[]optim.Part{optim.Cut{}}, "is cut in 0"},
		{[]optim.Part{optim.Cut{Axis: 1, Ranks: 4, Length: 2}}, ""},
		{[]optim.Part{optim.Cut{Length: 4}}, "is cut in 0"},
		{[]optim.Part{optim.Cut{Axis: 2, Ranks: 1, Length: 6}}, "along axis 2"},
		{[]optim.Part{optim.Cut{Axis: 1, Ranks: 2, Length: 2}},
			"axis 1 of the dimensions [4 6] is cut for 2 ranks with 2 indices each: choose enough for all"},
		{[]optim.Part{optim.Cut{Axis: 1, Ranks: 2, Length: -3}}, "2 ranks with -3 indices each"},
		{[]optim.Part{optim.Flat{}}, "it has 0 elements"},
	} {
		_, err := optim.StatesOfParts(optim.Adafactor(0), matrix, c.parts)
		refused(t, c.parts, err, c.want)
	}
	flat := tensors.FromValue([]float32{1, 2, 3, 4, 5})
	sum := func(x *graph.Node) *graph.Node { return x }
	for _, c := range []struct {
		opt  optim.Optimizer
		part func(g *graph.Graph) optim.Part
		want string
	}{
		{optim.SGD(1), func(*graph.Graph) optim.Part { return optim.Flat{Length: 5} }, ""}, // needs neither
		{optim.LAMB(1), func(g *graph.Graph) optim.Part {
			return optim.Flat{Length: 5, Offset: graph.Const(g, int32(0)), Sum: sum}
		}, ""},
		{optim.LAMB(1), func(g *graph.Graph) optim.Part {
			return optim.Flat{Length: 5,
				Offset: graph.Const(g, int32(0))}
		}, "set the Sum"},
		{optim.LAMB(1), func(*graph.Graph) optim.Part { return optim.Flat{Length: 5, Sum: sum} }, "set Offset"},
		{optim.LAMB(1), func(g *graph.Graph) optim.Part {
			return optim.Flat{Length: 5, Offset: graph.Const(g, float32(0)), Sum: sum}
		}, "set Offset"},
		{optim.SGD(1), func(*graph.Graph) optim.Part { return optim.Flat{Length: 6} }, "it must have dimensions [6]"},
		{optim.SGD(1), func(*graph.Graph) optim.Part { return optim.Cut{} }, "is cut in 0"},
	} {
		_, err := call(func(in []*graph.Node) []*graph.Node {
			u := optim.Update{Spec: matrix[0], Part: c.part(in[0].Graph()), Param: in[0], Grad: in[0],
				Step: graph.Const(in[0].Graph(), int32(1))}
			for range c.opt.States(u.Spec, u.Part) {
				u.States = append(u.States, graph.ZerosLike(in[0]))
			}
			w, _ := c.opt.Update(u)
			return []*graph.Node{w}
		}, flat)
		refused(t, c.want, err, c.want)
	}
}

// On a mesh of three devices, in one program, with flat parts, cut rows, and columns on several ranks, each optimizer
// equals that for the full parameter.
func TestPartsOnMesh(t *testing.T) {
	const ranks, steps = 3, 2
	mesh := must(devicetest.Open(t, ranks).Mesh(xla.Axis("data", ranks)))
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
		stacked := must(columns.Stack(values[2]))
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
		listed := must(optim.StatesOfParts(r.opt, tree, onRank(nil)))
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
	program := must(xla.Compile(mesh, func(in []*graph.Node) (all []*graph.Node) {
		step, grads, in := in[0], in[1:4], in[4:]
		parts := onRank(step.Graph())
		for _, r := range optimizers {
			listed := must(optim.StatesOfParts(r.opt, tree, parts))
			n := 3 + len(listed)
			w, s := optim.ApplyToParts(r.opt, tree, parts, in[:3], grads, in[3:n], step)
			all, in = slices.Concat(all, w, s), in[n:]
		}
		return all
	}, xla.In(append(in, out...)...).Gives(out...)))
	defer program.Close()
	for step := 1; step <= steps; step++ {
		grads := normal(tree, random)
		number := tensors.FromScalar(int32(step))
		results := must(program.Call(append(append([]any{number}, placed(grads)...), values...)...))
		values = values[:0]
		for i, r := range optimizers {
			wholes[i] = mustCall(t, func(in []*graph.Node) []*graph.Node {
				last := len(in) - 1
				w, s := optim.Apply(r.opt, tree, in[:3], in[3:6], in[6:last], in[last])
				return append(w, s...)
			}, slices.Concat(wholes[i][:3], grads, wholes[i][3:], []*tensors.Tensor{number})...)
			for k, whole := range wholes[i] {
				joined := must(results[len(values)].Merge())
				values = append(values, results[len(values)])
				if state := outputs[i][k]; state.Axis >= 0 && strings.HasPrefix(state.Name, "columns") {
					columns := &params.Cut{Axis: state.Axis, Index: columns.Index}
					joined = must(columns.Join(joined, 5))
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

func ExampleFlatLength() {
	w := params.New("w", dtypes.Float32, 100, 100)
	fmt.Println(optim.FlatLength(optim.AdamW(1e-3), w, 3), "of 3334 elements each")
	fmt.Println(optim.FlatLength(optim.Adam8bit(1e-3), w, 3), "of", 14*256, "elements each: 14 blocks")
	// Output:
	// 3334 of 3334 elements each
	// 3584 of 3584 elements each: 14 blocks
}

// quantized are optimizers in which the parameter "w" has blocks of 4 elements if it has at least 10, and others none.
func quantized() map[string]optim.Optimizer {
	eight := optim.Adam8bitOptimizer{AdamWOptimizer: optim.AdamW(0.01), Block: 4, Least: 10}
	onlyW := optim.Group{Has: optim.Named("w"), Optimizer: eight}
	slow := func(r optim.Optimizer) optim.Optimizer { return optim.Scheduled(r, optim.Warmup{Steps: 5}) }
	return map[string]optim.Optimizer{
		"Scheduled":            slow(optim.Grouped(optim.SGD(1), onlyW)),
		"Grouped":              optim.Grouped(optim.AdamW(1), onlyW),
		"the rest of Grouped":  optim.Grouped(eight, optim.Group{Has: optim.Named("other"), Optimizer: optim.Lion(1)}),
		"Scheduled in Grouped": optim.Grouped(optim.SGD(1), optim.Group{Has: optim.Named("w"), Optimizer: slow(eight)}),
		"twice Scheduled, twice Grouped": slow(optim.Grouped(optim.Grouped(optim.SGD(1), onlyW),
			optim.Group{Has: optim.Named("x"), Optimizer: optim.SGD(1)})),
	}
}

// TestFlatLength searches for the smallest length that has room for all elements, in full blocks.
func TestFlatLength(t *testing.T) {
	for _, dims := range [][]int{{}, {1}, {3}, {9}, {10}, {2, 5}, {7, 11}, {4, 4, 4}, {0, 3}} {
		for ranks := 1; ranks <= 9; ranks++ {
			check := func(name string, opt optim.Optimizer, param params.Spec, block int) {
				want := block
				for want*ranks < param.Size() {
					want += block
				}
				if got := optim.FlatLength(opt, param, ranks); got != want {
					t.Errorf("%s, %s%v on %d ranks: %d, want %d", name, param.Name, dims, ranks, got, want)
				}
			}
			w, other := params.New("w", dtypes.Float32, dims...), params.New("other", dtypes.Float32, dims...)
			check("AdamW", optim.AdamW(1), w, 1)
			check("Adafactor", optim.Scheduled(optim.Adafactor(1), optim.Warmup{Steps: 5}), w, 1)
			block := 1
			if w.Size() >= 10 {
				block = 4
			}
			for name, opt := range quantized() {
				check(name, opt, w, block)
				check(name, opt, other, 1)
			}
		}
	}
}

// TestFlatLengthKeepsSteps: with this length, the flat parts of all ranks make the steps of the full parameter, and
// their joined parameter and states are the same bit for bit.
func TestFlatLengthKeepsSteps(t *testing.T) {
	const steps = 3
	for name, opt := range quantized() {
		for _, dims := range [][]int{{3}, {7, 11}, {2, 3, 5}} {
			for _, ranks := range []int{1, 2, 3, 5} {
				c := cutting{dims: dims, ranks: ranks, axis: -1}
				c.length = optim.FlatLength(opt, c.spec(), ranks)
				tree := params.Tree{c.spec()}
				random := rand.New(rand.NewPCG(7, 8))
				args := normal(tree, random)
				for range steps {
					args = append(args, normal(tree, random)...)
				}
				out := mustCall(t, func(in []*graph.Node) (both []*graph.Node) {
					whole := trained(opt, tree, nil, in[0], in[1:])
					parts := make([][]*graph.Node, len(whole))
					for rank := range ranks {
						var grads []*graph.Node
						for _, grad := range in[1:] {
							grads = append(grads, c.of(grad, rank))
						}
						// needs no sums
						for k, x := range trained(opt, tree, c.onRank(in[0].Graph(), rank, nil), c.of(in[0], rank),
							grads) {
							parts[k] = append(parts[k], x)
						}
					}
					for k := range whole {
						both = append(both, join(parts[k], 0, whole[k]), whole[k])
					}
					return both
				}, args...)
				for k := 0; k < len(out); k += 2 {
					if got, want := floats(t, out[k]), floats(t, out[k+1]); !slices.Equal(got, want) {
						t.Errorf("%s, %v on %d ranks: output %d is %v, of the whole %v", name, dims, ranks, k/2, got,
							want)
					}
				}
			}
		}
	}
}

// Six columns on four ranks, where the last have padding. Adafactor's states can be joined; Adam8bit's blocks differ.
func ExampleJoins() {
	w := params.New("w", dtypes.Float32, 3000, 6)
	part := optim.Cut{Axis: 1, Ranks: 4, Length: 2}
	for _, s := range optim.Adafactor(0).States(w, part) {
		fmt.Println(s.Spec, "axis", s.Axis)
	}
	fmt.Println("joins:", optim.Joins(optim.Adafactor(0), w, part), optim.Joins(optim.Adam8bit(1e-3), w, part))
	// Output:
	// w.rows (Float32)[3000] axis -1
	// w.columns (Float32)[2] axis 0
	// joins: true false
}

func TestJoins(t *testing.T) {
	eight := optim.Adam8bitOptimizer{AdamWOptimizer: optim.AdamW(0.01), Block: 4, Least: 10}
	grouped := optim.Grouped(optim.SGD(1), optim.Group{Has: optim.Named("w"),
		Optimizer: optim.Scheduled(eight, optim.Constant(1))})
	for _, c := range []struct {
		opt  optim.Optimizer
		name string
		dims []int
		part optim.Part
		want bool
	}{
		{optim.Adafactor(0), "w", []int{4, 6}, optim.Cut{Axis: 1, Ranks: 2, Length: 4}, true},
		{optim.LAMB(1), "w", []int{4, 6}, optim.Flat{Length: 5}, true},
		{eight, "w", []int{4, 6}, nil, true},
		{eight, "w", []int{4, 6}, optim.Flat{Length: 12}, true},
		{eight, "w", []int{4, 6}, optim.Flat{Length: 13}, false},
		{eight, "w", []int{4, 6}, optim.Cut{Axis: 0, Ranks: 2}, true},
		{eight, "w", []int{1, 24}, optim.Cut{Axis: 1, Ranks: 3}, true},
		{eight, "w", []int{4, 6}, optim.Cut{Axis: 0, Ranks: 4}, false}, // parts cut blocks
		{eight, "w", []int{4, 6}, optim.Cut{Axis: 1, Ranks: 2}, false}, // blocks of other elements than the whole's
		{eight, "w", []int{4, 6}, optim.Cut{Axis: 1, Ranks: 1}, true},
		{eight, "w", []int{4, 8}, optim.Cut{Axis: 0, Ranks: 2, Length: 2}, false},
		{eight, "w", []int{3, 3}, optim.Cut{Axis: 1, Ranks: 2, Length: 2}, true}, // too small to be quantized
		{grouped, "w", []int{4, 8}, optim.Cut{Axis: 0, Ranks: 2, Length: 2}, false},
		{grouped, "b", []int{4, 8}, optim.Cut{Axis: 0, Ranks: 2, Length: 2}, true},
	} {
		if got := optim.Joins(c.opt, params.New(c.name, dtypes.Float32, c.dims...), c.part); got != c.want {
			t.Errorf("%T of %q %v, part %+v: %t, want %t", c.opt, c.name, c.dims, c.part, got, c.want)
		}
	}
}

func TestAdam8bitRefusesIndices(t *testing.T) {
	w := params.New("w", dtypes.Float32, 4, 6)
	for least, want := range map[int]string{1: "Adam8bit quantizes blocks of w (Float32)[4, 6]", 100: ""} {
		opt := optim.Adam8bitOptimizer{AdamWOptimizer: optim.AdamW(0.01), Block: 4, Least: least}
		_, err := call(func(in []*graph.Node) []*graph.Node {
			return trained(opt, params.Tree{w}, optim.Cut{Axis: 1, Ranks: 2, Length: 3}, in[0], in[:1])
		}, tensors.FromValue([][]float32{{1, 2, 3}, {1, 2, 3}, {1, 2, 3}, {1, 2, 3}}))
		refused(t, least, err, want)
	}
}

func TestCountedRefused(t *testing.T) {
	w := params.New("w", dtypes.Float32, 4, 6)
	for _, c := range []struct {
		counted any // nil: none
		want    string
	}{
		{nil, ""},
		{[]bool{true, false, true}, ""},
		{[]bool{true, false}, "the Counted of a part of dimensions [4 3], cut along axis 1, has shape (Bool)[2]: " +
			"give a vector of 3 booleans"},
		{[]float32{1, 0, 1}, "has shape (Float32)[3]"},
		{true, "has shape (Bool)"},
	} {
		_, err := call(func(in []*graph.Node) []*graph.Node {
			part := optim.Cut{Axis: 1, Ranks: 2, Length: 3, Sum: func(x *graph.Node) *graph.Node { return x }}
			if c.counted != nil {
				part.Counted = graph.Const(in[0].Graph(), c.counted)
			}
			u := optim.Update{Spec: w, Part: part, Param: in[0], Grad: in[0],
				Step: graph.Const(in[0].Graph(), int32(1))}
			return []*graph.Node{u.Total(in[0])}
		}, tensors.FromValue([][]float32{{1, 2, 3}, {1, 2, 3}, {1, 2, 3}, {1, 2, 3}}))
		refused(t, c.counted, err, c.want)
	}
}
