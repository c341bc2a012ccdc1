package flash

import (
	"math"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/flash/internal/kernel"
)

// operands of the kernel: q, k, v, the mask's nodes (empty tensors for missing ones), and causal, window and scale.
func (c call) operands() []*graph.Node {
	g := c.q.Graph()
	in := []*graph.Node{c.q, c.k, c.v}
	for _, extra := range c.extras() {
		if *extra == nil {
			in = append(in, graph.Zeros(g, shapes.Make(dtypes.Int32, 0)))
		} else {
			in = append(in, *extra)
		}
	}
	causal := int32(0)
	if c.Causal {
		causal = 1
	}
	return append(in, graph.Const(g, []int32{causal, int32(c.Window), int32(math.Float32bits(float32(c.Scale)))}))
}

func (c call) kernelForward(of dtypes.DType) (out, m, d *graph.Node) {
	results := []shapes.Shape{c.outShape(of), c.statShape(), c.statShape()}
	r := kernel.Forward.Call(c.operands(), results, func([]*graph.Node) []*graph.Node {
		out, m, d := c.blocksForward(of)
		return []*graph.Node{out, m, d}
	})
	return r[0], r[1], r[2]
}

func (c call) kernelBackward(out, m, d, dOut *graph.Node) (dq, dk, dv *graph.Node) {
	results := []shapes.Shape{c.q.Shape(), c.k.Shape(), c.v.Shape()}
	r := kernel.Backward.Call(append(c.operands(), out, m, d, dOut), results, func([]*graph.Node) []*graph.Node {
		dq, dk, dv := c.blocksBackward(out, m, d, dOut)
		return []*graph.Node{dq, dk, dv}
	})
	return r[0], r[1], r[2]
}
