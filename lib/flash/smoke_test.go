package flash

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
)

func TestSmoke(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct{ b, t, s, h, k, d, e int }{{2, 5, 5, 2, 2, 8, 8}, {1, 70, 130, 4, 2, 3, 5}, {2, 200, 200, 4, 1, 16, 16}} {
		for _, causal := range []bool{false, true} {
			mk := func(dims ...int) *tensors.Tensor {
				n := 1
				for _, d := range dims {
					n *= d
				}
				f := make([]float32, n)
				for i := range f {
					f[i] = float32(r.NormFloat64())
				}
				return tensors.FromFlatDataAndDimensions(f, dims...)
			}
			q, k, v, w := mk(c.b, c.t, c.h, c.d), mk(c.b, c.s, c.k, c.d), mk(c.b, c.s, c.k, c.e), mk(c.b, c.t, c.h, c.e)
			run := func(o Options) [][]float32 {
				out, err := devicetest.Call(func(in []*graph.Node) []*graph.Node {
					y, l := WithLogSumExp(in[0], in[1], in[2], o)
					g := graph.Gradient(graph.ReduceAllSum(graph.Mul(y, in[3])), in[:3]...)
					return append([]*graph.Node{y, l}, g...)
				}, q, k, v, w)
				if err != nil {
					t.Fatal(err)
				}
				var fs [][]float32
				for _, o := range out {
					fs = append(fs, tensors.MustCopyFlatData[float32](o))
				}
				return fs
			}
			a := run(Options{Mask: Mask{Causal: causal}, Engine: Blocks, Block: Block{64, 32}})
			b := run(Options{Mask: Mask{Causal: causal}, Engine: CPU})
			for i := range a {
				worst := 0.0
				for j := range a[i] {
					if a[i][j] != b[i][j] {
						worst = max(worst, math.Abs(float64(a[i][j]-b[i][j])))
					}
				}
				fmt.Println(c, causal, i, worst, a[i][:2], b[i][:2])
			}
		}
	}
}
