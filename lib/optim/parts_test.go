package optim_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
)

// allOptimizers are all optimizers, and combinations of them.
func allOptimizers() []optimizerCase {
	eight := optim.Adam8bitOptimizer{AdamWOptimizer: optim.AdamW(0.01), Block: 4, Least: 1}
	all := append(exactOptimizers(), optimizerCase{name: "Adam8bit", opt: eight},
		optimizerCase{name: "Grouped and scheduled", opt: optim.Scheduled(
			optim.Grouped(optim.SGD(1), optim.Group{Has: optim.Named("w"), Optimizer: optim.Adafactor(0)}),
			optim.Warmup{Steps: 5})})
	for name, opt := range quantized() {
		all = append(all, optimizerCase{name: name, opt: opt})
	}
	return all
}

// After three steps the joined parts of all ranks equal the full parameter and its states: bit for bit if the optimizer
// quantizes blocks and the parts are flat, with full blocks ([optim.FlatLength]). Ranks with the same index have the
// same bits for it, and padding is still 0.
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
			listed := must.Value(optim.StatesOfParts(r.opt, tree, []optim.Part{c.part()}))
			var compared []optim.State // of the outputs: names and axes, for each the parts' and the whole's
			out := must.Value(call(func(in []*graph.Node) (outputs []*graph.Node) {
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
			}, args...))
			for k, state := range compared {
				if c.index != nil && state.Axis >= 0 {
					out[2*k] = c.joined(t, name, state, out[2*k], out[2*k+1])
				}
				got, want := floats(t, out[2*k]), floats(t, out[2*k+1])
				if strings.HasSuffix(state.Name, ".max") && c.axis > 0 && c.index == nil {
					slices.Sort(got) // blocks come in another order
					slices.Sort(want)
				}
				same := slices.EqualFunc(got, want, near)
				if _, exact := quantized()[r.name]; exact && c.axis < 0 {
					same = slices.Equal(got, want)
				}
				if !same {
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
	joined := must.Value(cut.Join(stacked, like.Shape().Dim(state.Axis)))
	again := must.Value(cut.Stack(joined))
	marks := make([]int32, like.Size()) // 1 where there is no padding
	for i := range marks {
		marks[i] = 1
	}
	marked := must.Value(cut.Stack(tensors.FromFlatDataAndDimensions(marks, like.Shape().Dimensions...)))
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
			return optim.Flat{Length: 5, Offset: graph.Const(g, int32(0))}
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
