package optim_test

import (
	"fmt"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
)

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
