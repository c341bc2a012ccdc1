package tensor_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/tensor"
	"github.com/shardbook/shardbook/lib/xla"
)

func TestCutters(t *testing.T) {
	for _, c := range []struct {
		name  string
		cut   tensor.Cutter
		dims  []int
		ranks int
		axis  int
		want  [][]int
	}{
		{"even", tensor.Even(0), []int{6, 5}, 3, 0, [][]int{{0, 1}, {2, 3}, {4, 5}}},
		{"the last axis of a matrix", tensor.Even(-1), []int{5, 4}, 2, 1, [][]int{{0, 1}, {2, 3}}},
		{"the last axis of a bias", tensor.Even(-1), []int{4}, 2, 0, [][]int{{0, 1}, {2, 3}}},
		{"padded", tensor.Padded(0), []int{5, 2}, 4, 0, [][]int{{0, 1}, {2, 3}, {4, -1}, {-1, -1}}},
		{"query heads", tensor.Heads(0, 4, 0, 2), []int{8, 3}, 2, 0, [][]int{{0, 1, 2, 3}, {4, 5, 6, 7}}},
		{"one key head for all", tensor.Heads(-1, 3, 1, 2), []int{10}, 3, 0,
			[][]int{{0, 1, 6, 7, 8, 9}, {2, 3, 6, 7, 8, 9}, {4, 5, 6, 7, 8, 9}}},
	} {
		got, err := c.cut(params.New("w", dtypes.Float32, c.dims...), c.ranks)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got.Axis != c.axis || fmt.Sprint(got.Index) != fmt.Sprint(c.want) {
			t.Errorf("%s: axis %d, %v, want axis %d, %v", c.name, got.Axis, got.Index, c.axis, c.want)
		}
	}
}

// Every query head is on the rank of its key head, and ranks with the same key head are neighbours.
func TestHeadsOfARank(t *testing.T) {
	for queries := 1; queries <= 12; queries++ {
		for keys := 1; keys <= queries; keys++ {
			for ranks := 1; ranks <= queries; ranks++ {
				size := queries + 2*keys
				cut, err := tensor.Heads(0, queries, keys, 1)(params.New("qkv.b", dtypes.Float32, size), ranks)
				possible := queries%keys == 0 && queries%ranks == 0 && (keys%ranks == 0 || ranks%keys == 0)
				if possible != (err == nil) {
					t.Errorf("%d query heads, %d key heads, %d ranks: %v", queries, keys, ranks, err)
				}
				if err != nil {
					continue
				}
				all := map[int]bool{}
				for r, index := range cut.Index {
					mine := queries / ranks
					local := (len(index) - mine) / 2 // key heads
					for i, head := range index[:mine] {
						if head != r*mine+i {
							t.Errorf("%d, %d, %d: rank %d has query heads %v", queries, keys, ranks, r, index[:mine])
						}
						key := index[mine+i*local/mine] // as the rank computes it
						if want := queries + head*keys/queries; key != want ||
							index[mine+local+i*local/mine] != want+keys {
							t.Errorf("%d, %d, %d: on rank %d head %d attends with %v", queries, keys, ranks, r, head,
								index)
						}
					}
					for _, i := range index {
						all[i] = true
					}
				}
				if len(all) != size {
					t.Errorf("%d, %d, %d: an index is on no rank: %v", queries, keys, ranks, cut.Index)
				}
			}
		}
	}
}

func TestRules(t *testing.T) {
	rules := tensor.Rules{
		{Name: "h*.up.w", Cut: tensor.Even(-1)},
		{Name: "h*.qkv.?", Cut: tensor.Heads(-1, 2, 1, 1)},
		{Name: "h0.*", Cut: tensor.Even(0)}, // after the first matches
		{Name: "tok", Cut: tensor.Padded(0)},
	}
	f := dtypes.Float32
	tree := params.Tree{params.New("tok", f, 5, 2), params.New("h0.up.w", f, 3, 4), params.New("h10.up.w", f, 3, 4),
		params.New("h0.down.w", f, 4, 3), params.New("h1.qkv.b", f, 4), params.New("lnf.g", f, 3)}
	cuts := must.Value(rules.Cuts(tree, 2))
	place := rules.Auto("tensor", 2)
	var axes []int
	var placements []string
	for i, cut := range cuts {
		if placements = append(placements, place(i, tree[i]).String()); cut == nil {
			axes = append(axes, -1)
			continue
		}
		axes = append(axes, cut.Axis)
	}
	if want := []int{0, 1, 1, 0, 0, -1}; !slices.Equal(axes, want) {
		t.Errorf("cut along %v, want %v", axes, want)
	}
	on := func(axis int) string { return xla.Shard(axis, "tensor").String() }
	if want := []string{xla.Replicated().String(), on(1), on(1), on(0), on(0),
		xla.Replicated().String()}; !slices.Equal(placements, want) {
		t.Errorf("placed %v, want %v", placements, want)
	}

	cuts, err := rules.Cuts(tree, 1)
	if err != nil || len(cuts) != len(tree) || slices.ContainsFunc(cuts, func(c *params.Cut) bool { return c != nil }) {
		t.Errorf("one rank has %v, %v, want all replicated", cuts, err)
	}
	if p := rules.Auto("tensor", 1)(1, tree[1]); p.String() != xla.Replicated().String() {
		t.Errorf("one rank has %v, want it replicated", p)
	}
}

func TestErrorsOfRules(t *testing.T) {
	w := params.Tree{params.New("up.w", dtypes.Float32, 4, 6)}
	for _, c := range []struct {
		rule  tensor.Rule
		ranks int
		want  []string
	}{
		{tensor.Rule{Name: "up.w", Cut: tensor.Even(0)}, 0, []string{"0 ranks"}},
		{tensor.Rule{Name: "up[", Cut: tensor.Even(0)}, 2, []string{`"up["`, "path.Match"}},
		{tensor.Rule{Name: "up.w", Cut: tensor.Even(0)}, 3, []string{"up.w", "4", "3 ranks"}},
		{tensor.Rule{Name: "up.w", Cut: tensor.Even(2)}, 2, []string{"up.w", "axis 2"}},
		{tensor.Rule{Name: "up.w", Cut: tensor.Even(-3)}, 2, []string{"up.w", "axis -3"}},
		{tensor.Rule{Name: "up.w", Cut: tensor.Heads(1, 2, 1, 2)}, 2, []string{"up.w", "2 query heads", "give 6"}},
		{tensor.Rule{Name: "up.w", Cut: tensor.Heads(1, 6, 0, 1)}, 4, []string{"up.w", "4 ranks", "6 query heads"}},
		{tensor.Rule{Name: "up.w", Cut: tensor.Heads(-2, 2, 1, 1)}, 3, []string{"up.w", "3 ranks", "2 query heads"}},
	} {
		_, err := tensor.Rules{c.rule}.Cuts(w, c.ranks)
		for _, part := range c.want {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%v for %d ranks: %v, want %q in it", c.rule.Name, c.ranks, err, part)
			}
		}
		if c.ranks > 1 && !replicated(tensor.Rules{c.rule}, w[0], c.ranks) {
			t.Errorf("%v for %d ranks: Auto shards a parameter that cannot be sharded", c.rule.Name, c.ranks)
		}
	}
}

func replicated(r tensor.Rules, s params.Spec, ranks int) bool {
	return r.Auto("tensor", ranks)(0, s).String() == xla.Replicated().String()
}

// The pair of layers of the examples: Z = relu(X·A)·B.
var (
	inputX  = [][][]float32{{{1, 2}}} // (B,T,C): one token
	firstA  = [][]float32{{1, 3, -1, 0, 3, -2}, {1, -1, 0, 2, -1, 2}}
	secondB = [][]float32{{1, 0}, {0, 1}, {1, 1}, {1, -1}, {2, 0}, {0, 3}}
	tree    = params.Tree{params.New("a", dtypes.Float32, 2, 6), params.New("b", dtypes.Float32, 6, 2)}
	rules   = tensor.Rules{{Name: "a", Cut: tensor.Even(1)}, {Name: "b", Cut: tensor.Even(0)}}
)

func relu(x *graph.Node) *graph.Node { return graph.Max(x, graph.ZerosLike(x)) }

// two opens two devices along the axis "tensor".
func two() (mesh *xla.Mesh, done func()) {
	backend := must.Value(xla.Open(xla.Devices(2), xla.Plugin("cpu")))
	mesh = must.Value(backend.Mesh(xla.Axis("tensor", 2)))
	return mesh, backend.Close
}

// row is the only row of device d's shard.
func row(of *dtensor.Tensor, d int) []float32 { return of.Shards()[d].Value().([][][]float32)[0][0] }

// A pair of layers on two devices: each has half of A's columns and the same half of B's rows. Its columns of Y =
// relu(X·A) are all that it needs for its term of the sum Z = Y·B.
func Example() {
	mesh, done := two()
	defer done()
	group := tensor.Group{Axis: "tensor"}
	p := must.Value(xla.Compile(mesh, func(x, a, b *graph.Node) (y, part, z *graph.Node) {
		y = relu(group.Columns(x, []*graph.Node{a}, dot)[0])
		part = dot(y, b)
		return y, part, group.Leave(part) // group.Rows is these two
	}, xla.In(xla.Replicated(), xla.Shard(1, "tensor"), xla.Shard(0, "tensor")).
		Gives(xla.Shard(2, "tensor"), xla.Shard(2, "tensor"), xla.Shard(0, "tensor"))))
	out := must.Value(p.Call(inputX, firstA, secondB))
	for d := range 2 {
		fmt.Printf("device %d: Y%d = %v, Z%d = Y%d·B%d = %v, their sum %v\n", d, d+1, row(out[0], d), d+1, d+1, d+1,
			row(out[1], d), row(out[2], d))
	}
	sent := must.Value(p.Collectives())
	fmt.Println(sent)

	one := must.Value(graph.NewExec(mesh.Backend(),
		func(x, a, b *graph.Node) *graph.Node { return dot(relu(dot(x, a)), b) }))
	z := must.Value(one.Call(inputX, firstA, secondB))
	fmt.Println("one device: Z =", z[0].Value().([][][]float32)[0][0])
	// Output:
	// device 0: Y1 = [3 1 0], Z1 = Y1·B1 = [3 1], their sum [9 3]
	// device 1: Y2 = [4 1 2], Z2 = Y2·B2 = [6 2], their sum [9 3]
	// all-reduce ×1, 8 B
	// one device: Z = [9 3]
}

// The same with the compiler's own sharding: given the placements of A and B, it finds the one all-reduce.
func ExampleRules_Auto() {
	mesh, done := two()
	defer done()
	place := rules.Auto("tensor", 2)
	p := must.Value(xla.CompileAuto(mesh, func(x, a, b *graph.Node) *graph.Node { return dot(relu(dot(x, a)), b) },
		xla.In(xla.Replicated(), place(0, tree[0]), place(1, tree[1])).Gives(xla.Replicated())))
	out := must.Value(p.Call(inputX, firstA, secondB))
	fmt.Println("Z =", row(out[0], 0), "on one and", row(out[0], 1), "on the other")
	sent := must.Value(p.Collectives())
	fmt.Println(sent)
	// Output:
	// Z = [9 3] on one and [9 3] on the other
	// all-reduce ×1, 8 B
}
