package flash_test

import (
	"math/rand/v2"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/flash"
)

// Attention to parts of the keys, merged in any order, is attention to all keys. So are its gradients.
func TestPartial(t *testing.T) {
	for _, p := range []problem{
		{b: 2, t: 40, s: 90, h: 4, k: 2, d: 8, e: 5, dtype: dtypes.Float32, causal: true},
		{b: 1, t: 30, s: 60, h: 2, k: 2, d: 8, e: 8, dtype: dtypes.BFloat16, window: 20},
	} {
		p.fill(rand.New(rand.NewPCG(7, 2)), 1)
		p.qp, p.kp = make([]int32, p.t), make([]int32, p.s)
		for i := range p.qp {
			p.qp[i] = int32(i * 2)
		}
		for i := range p.kp {
			p.kp[i] = int32(i) - 3 // so that with causal some queries see no key of some parts
		}
		cuts := [][2]int{{50, p.s}, {0, 20}, {20, 50}}
		got, err := together(devicetest.One(), []problem{p}, func(p problem, in nodes) nodes {
			o := p.options(in)
			var merged flash.Partial
			part := func(i int) (k, v *node, po flash.Options) {
				cut := graph.AxisRange(cuts[i][0], cuts[i][1])
				po = o
				po.KeyPositions = graph.Slice(o.KeyPositions, cut)
				return graph.Slice(in[1], graph.AxisRange(), cut), graph.Slice(in[2], graph.AxisRange(), cut), po
			}
			for i := range cuts {
				k, v, po := part(i)
				if partial := flash.Attend(in[0], k, v, po); i == 0 {
					merged = partial
				} else {
					merged = partial.Merge(merged)
				}
			}
			var dq *node
			dks, dvs := make(nodes, 3), make(nodes, 3)
			for i := range cuts {
				k, v, po := part(i)
				q, dk, dv := flash.Gradients(in[0], k, v, merged, in[3], po)
				if q = graph.ConvertDType(q, dtypes.Float32); dq == nil {
					dq = q
				} else {
					dq = graph.Add(dq, q)
				}
				dks[(i+2)%3], dvs[(i+2)%3] = dk, dv
			}
			return nodes{merged.Output(p.dtype), graph.Add(merged.M, graph.Log(merged.D)),
				graph.ConvertDType(dq, p.dtype), graph.Concatenate(dks, 1), graph.Concatenate(dvs, 1)}
		})
		if err != nil {
			t.Fatal(err)
		}
		naive, err := together(devicetest.PureGo(), []problem{p}, problem.naive)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.check(got[0], naive[0], p.exact()); err != nil {
			t.Error(err)
		}
	}
}
