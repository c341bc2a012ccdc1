package residual_test

import (
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/recompute"
	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/zero/residual"
)

func TestProbe(t *testing.T) {
	mesh := meshOf(t, 4)
	for _, dt := range []dtypes.DType{dtypes.Float32, dtypes.BFloat16} {
		for _, way := range []string{"call", "part"} {
			var m [2]int64
			for k, layers := range []int{3, 9} {
				c := gpt.Config{Layers: 1, Width: 16, Heads: 2, Seq: 64, Vocab: 32}
				tree, err := c.Params().Under("h0")
				if err != nil {
					tree, err = c.Params().Under(gpt.BlockName(0))
					if err != nil {
						t.Fatal(err)
					}
				}
				p, err := xla.Compile(mesh, func(in nodes) nodes {
					h := graph.ConvertDType(in[0], dt)
					w := nodes{}
					for _, n := range in[1:] {
						w = append(w, graph.ConvertDType(n, dt))
					}
					for range layers {
						fn := func(in nodes) nodes {
							return nodes{c.Block(tree.As(dt).Nodes(in[1:]), 0, in[0], nil)}
						}
						if way == "call" {
							h = recompute.Call(fn, append(nodes{h}, w...)...)[0]
						} else {
							h = residual.Checkpoint(fn, "tensor", h, w...)[0]
						}
					}
					loss := graph.ReduceAllSum(graph.ConvertDType(graph.Square(h), dtypes.Float32))
					return append(nodes{loss}, graph.Gradient(loss, in...)...)
				}, xla.In(xla.Replicated()).Gives(xla.Replicated()))
				if err != nil {
					t.Fatal(err)
				}
				args := []any{tensors.FromShape(shapes.Make(dtypes.Float32, 16, 64, 16))}
				for _, s := range tree {
					args = append(args, tensors.FromShape(s.Shape))
				}
				if err := p.Prepare(args...); err != nil {
					t.Fatal(err)
				}
				mm, _ := p.Memory()
				m[k] = mm.Temporary
				p.Close()
			}
			t.Log(dt, way, m, float64(m[1]-m[0])/6/(16*64*16*float64(dt.Size())))
		}
	}
	_ = params.Tree{}
}
