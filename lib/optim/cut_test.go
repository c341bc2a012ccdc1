package optim_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
)

// Six columns on four ranks: the last have padding. Adafactor's states join to the whole's. Adam8bit's are per column then,
// on all ranks together as on one that has all columns.
func ExampleJoins() {
	w := params.New("w", dtypes.Float32, 300, 6)
	part := optim.Cut{Axis: 1, Ranks: 4, Length: 2}
	eight := optim.Adam8bit(1e-3)
	eight.Least = 1
	for _, rule := range []optim.Rule{optim.Adafactor(0), eight} {
		fmt.Println("joins:", optim.Joins(rule, w, part))
		for _, s := range rule.States(w, part) {
			fmt.Println(s.Spec, "axis", s.Axis)
		}
	}
	one := eight.States(w, optim.Cut{Axis: 1, Ranks: 1, Length: 6})
	fmt.Println(one[1].Spec)
	// Output:
	// joins: true
	// w.rows (Float32)[300] axis -1
	// w.columns (Float32)[2] axis 0
	// joins: false
	// w.m (Uint8)[300, 2] axis 1
	// w.m.max (Float32)[2, 2] axis 0
	// w.v (Uint8)[300, 2] axis 1
	// w.v.max (Float32)[2, 2] axis 0
	// w.m.max (Float32)[6, 2]
}

func TestJoins(t *testing.T) {
	eight := optim.Adam8bitRule{AdamWRule: optim.AdamW(0.01), Block: 4, Least: 10}
	grouped := optim.Grouped(optim.SGD(1), optim.Group{Has: optim.Named("w"), Rule: optim.Scheduled(eight, optim.Constant(1))})
	for _, c := range []struct {
		rule optim.Rule
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
		{eight, "w", []int{3, 3}, optim.Cut{Axis: 1, Ranks: 2, Length: 2}, true}, // too small to be quantised
		{grouped, "w", []int{4, 8}, optim.Cut{Axis: 0, Ranks: 2, Length: 2}, false},
		{grouped, "b", []int{4, 8}, optim.Cut{Axis: 0, Ranks: 2, Length: 2}, true},
	} {
		if got := optim.Joins(c.rule, params.New(c.name, dtypes.Float32, c.dims...), c.part); got != c.want {
			t.Errorf("%T of %q %v, part %+v: %t, want %t", c.rule, c.name, c.dims, c.part, got, c.want)
		}
	}
}

// TestAdam8bitByIndex has each index along an axis as a parameter of its own, and all of them as one part: parameters and
// states are the same bit for bit.
func TestAdam8bitByIndex(t *testing.T) {
	const steps = 3
	rule := optim.Adam8bitRule{AdamWRule: optim.AdamW(0.01), Block: 4, Least: 1}
	for _, dims := range [][]int{{5}, {3, 8}, {6, 3}, {3, 2, 5}} {
		for axis := range dims {
			tree := params.Tree{params.New("w", dtypes.Float32, dims...)}
			without := slices.Delete(slices.Clone(dims), axis, axis+1)
			alone := params.Tree{params.New("w", dtypes.Float32, without...)}
			random := rand.New(rand.NewPCG(5, 6))
			var args []*tensors.Tensor
			for range 1 + steps {
				args = append(args, normal(tree, random)...)
			}
			out := mustCall(t, func(in []*graph.Node) (pairs []*graph.Node) {
				all := trained(rule, tree, optim.Cut{Axis: axis, Ranks: 1, Length: dims[axis]}, in[0], in[1:])
				one := func(x *graph.Node, axis, i int) *graph.Node { return graph.Squeeze(pick(x, axis, []int{i}), axis) }
				for i := range dims[axis] {
					var grads []*graph.Node
					for _, grad := range in[1:] {
						grads = append(grads, one(grad, axis, i))
					}
					for k, want := range trained(rule, alone, nil, one(in[0], axis, i), grads) {
						along := axis
						if k == 2 || k == 4 { // scales
							along = 0
						}
						pairs = append(pairs, one(all[k], along, i), want)
					}
				}
				return pairs
			}, args...)
			for k := 0; k < len(out); k += 2 {
				got, want := floats(t, out[k]), floats(t, out[k+1])
				if !out[k].Shape().Equal(out[k+1].Shape()) || !slices.Equal(got, want) {
					t.Errorf("%v along axis %d, index %d: output %d is %v, of the index alone %v", dims, axis, k/10, k/2%5, got, want)
				}
			}
		}
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
		{[]bool{true, false}, "the Counted of a part of dimensions [4 3], cut along axis 1, has shape (Bool)[2]: give a vector of 3 booleans"},
		{[]float32{1, 0, 1}, "has shape (Float32)[3]"},
		{true, "has shape (Bool)"},
	} {
		_, err := call(func(in []*graph.Node) []*graph.Node {
			part := optim.Cut{Axis: 1, Ranks: 2, Length: 3, Sum: func(x *graph.Node) *graph.Node { return x }}
			if c.counted != nil {
				part.Counted = graph.Const(in[0].Graph(), c.counted)
			}
			u := optim.Update{Spec: w, Part: part, Param: in[0], Grad: in[0], Step: graph.Const(in[0].Graph(), int32(1))}
			return []*graph.Node{u.Total(in[0])}
		}, tensors.FromValue([][]float32{{1, 2, 3}, {1, 2, 3}, {1, 2, 3}, {1, 2, 3}}))
		refused(t, c.counted, err, c.want)
	}
}
