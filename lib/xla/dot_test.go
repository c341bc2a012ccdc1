package xla

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/shardbook/shardbook/internal/must"
)

// TestProductsOfFewRows: without kernels, matmuls x·wᵀ are right on both sides of the bounds, and transposed on one.
func TestProductsOfFewRows(t *testing.T) {
	b := must.Get(Open(Devices(1), Plugin("cpu"), NoKernels()))(t)
	defer b.Close()
	m := must.Get(b.Mesh(Axis("x", 1)))(t)
	random := rand.New(rand.NewPCG(1, 2))
	numbers := func(n int) []float32 {
		values := make([]float32, n)
		for i := range values {
			values[i] = float32(random.NormFloat64())
		}
		return values
	}
	for _, c := range []struct {
		rows    []int
		n, k    int
		swapped bool
	}{
		{[]int{128}, 512, 512, true}, {[]int{2, 3, 5}, 512, 640, true}, {[]int{1}, 1024, 256, true},
		{[]int{129}, 512, 512, false}, {[]int{64}, 511, 512, false}, {[]int{3}, 16, 16, false},
	} {
		rows := 1
		for _, r := range c.rows {
			rows *= r
		}
		x, w := numbers(rows*c.k), numbers(c.n*c.k)
		p := must.Get(Compile(m, func(in []*graph.Node) *graph.Node {
			return graph.DotGeneral(in[0], []int{len(c.rows)}, nil, in[1], []int{1}, nil)
		}, In(Replicated()).Gives(Replicated())))(t)
		out := must.Get(p.Call(tensors.FromFlatDataAndDimensions(x, append(slices.Clone(c.rows), c.k)...),
			tensors.FromFlatDataAndDimensions(w, c.n, c.k)))(t)
		name := fmt.Sprintf("%v rows of %d by %d", c.rows, c.k, c.n)
		y := out[0].Shards()[0]
		if want := append(slices.Clone(c.rows), c.n); !slices.Equal(y.Shape().Dimensions, want) {
			t.Errorf("%s: dimensions %v, want %v", name, y.Shape().Dimensions, want)
		}
		for i, got := range tensors.MustCopyFlatData[float32](y) {
			want, size := 0.0, 0.0
			for k := range c.k {
				part := float64(x[i/c.n*c.k+k]) * float64(w[i%c.n*c.k+k])
				want, size = want+part, size+math.Abs(part)
			}
			if !(math.Abs(float64(got)-want) <= size*float64(c.k)*0x1p-24) { // Higham 2002, §3.1
				t.Fatalf("%s: element %d is %g, want %g", name, i, got, want)
			}
		}
		operations := must.Get(p.Operations())(t)
		transposes := slices.ContainsFunc(operations, func(o Operation) bool {
			return o.Kind == "transpose" || o.Kind == "fusion" || o.Kind == "copy"
		})
		if transposes != c.swapped {
			t.Errorf("%s: transposed is %v, want %v: %+v", name, transposes, c.swapped, operations)
		}
		p.Close()
	}
}
