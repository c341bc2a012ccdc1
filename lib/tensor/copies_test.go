package tensor_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/tensor"
	"github.com/shardbook/shardbook/lib/xla"
)

// For random cuts along each axis, the gradient at an index is the sum over all ranks that have it, and the values do
// not change.
func TestSumCopies(t *testing.T) {
	const n = 4
	group := tensor.Group{Axis: "tensor"}
	mesh := meshOf(t, devicetest.Open(t, n), xla.Axis("tensor", n))
	r := rand.New(rand.NewPCG(7, 8))
	var cuts []*params.Cut
	var args []any
	var values, weights []array // unsharded; stacked by rank
	for _, s := range []struct{ size, length int }{{6, 3}, {5, 4}, {20, 5}, {1, 1}} {
		for axis := range 3 {
			cut := &params.Cut{Axis: axis}
			for rank := range n {
				indices := r.Perm(s.size)[:s.length]
				if rank > 0 && s.length > 1 {
					indices[r.IntN(s.length)] = -1
				}
				cut.Index = append(cut.Index, indices)
			}
			dims := []int{2, 3, 2}
			dims[axis] = s.size
			values, cuts = append(values, random(r, 1, dims...)), append(cuts, cut)
			dims = append([]int{n}, dims...)
			dims[1+axis] = s.length
			weights = append(weights, random(r, 1, dims...))
			args = append(args, values[len(values)-1].stacked(cut, n), weights[len(weights)-1].tensor())
		}
	}
	p := onRanks(t, mesh, 0, len(args), func(in []*graph.Node) []*graph.Node {
		var out []*graph.Node
		for i, cut := range cuts {
			x := group.SumCopies(in[2*i], cut.Axis-3, cut)
			out = append(out, x, graph.Gradient(graph.ReduceAllSum(graph.Mul(x, in[2*i+1])), in[2*i])[0])
		}
		return out
	})
	got := call(t, p, args...)
	for i, cut := range cuts {
		w, dims := weights[i].values, weights[i].dims
		inner := 1
		for _, d := range dims[2+cut.Axis:] {
			inner *= d
		}
		length := dims[1+cut.Axis]
		each := len(w) / n
		var want []float64
		for rank := range n {
			for at := range each {
				index := cut.Index[rank][at/inner%length]
				sum := 0.0
				for other := range n { // at the same position along the other axes
					for place, held := range cut.Index[other] {
						if held == index && (index >= 0 || other == rank && place == at/inner%length) {
							sum += w[other*each+at+(place-at/inner%length)*inner]
						}
					}
				}
				want = append(want, sum)
			}
		}
		what := fmt.Sprintf("%v of %v", cut, values[i].dims)
		if d := distance(t, what, got[2*i+1], want, 1); !(d <= 0x1p-20) {
			t.Errorf("%s: gradients %v, want %v", what, got[2*i+1], want)
		}
		var same []float64
		for rank := range n {
			same = append(same, values[i].part(cut, rank).values...)
		}
		if d := distance(t, what, got[2*i], same, 1); d != 0 {
			t.Errorf("%s: values have changed", what)
		}
	}
}

// Only the columns that several ranks have are communicated.
func TestCopiesTraffic(t *testing.T) {
	const n, width, heads, wide = 4, 3, 4, 2
	mesh := meshOf(t, devicetest.Open(t, n), xla.Axis("tensor", n))
	for _, c := range []struct {
		keys int
		want string
	}{
		{4, "no collectives"},
		// Keys and values of two heads: 2·2·2 columns of 3 float32, and the all-to-all that gives the rank.
		{2, fmt.Sprint(xla.Report{{Kind: xla.AllReduce, Count: 1, Bytes: 4 * width * 2 * 2 * wide},
			{Kind: xla.AllToAll, Count: 1, Bytes: 4 * n}})},
	} {
		spec := params.New("qkv.w", dtypes.Float32, width, (heads+2*c.keys)*wide)
		cut, err := tensor.Heads(-1, heads, c.keys, wide)(spec, n)
		if err != nil {
			t.Fatal(err)
		}
		p := onRanks(t, mesh, 0, 1, func(in []*graph.Node) []*graph.Node {
			x := tensor.Group{Axis: "tensor"}.SumCopies(in[0], -1, cut)
			return graph.Gradient(graph.ReduceAllSum(graph.Square(x)), in[0])
		})
		if err := p.Prepare(zeros(n, width, cut.Length())); err != nil {
			t.Fatal(err)
		}
		if got := report(t, p); got != c.want {
			t.Errorf("%d key heads: %s, want %s", c.keys, got, c.want)
		}
	}
}
