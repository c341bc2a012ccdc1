package expert_test

import (
	"fmt"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/expert"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
)

// Two experts of Mixtral's kind: the parameters of a layer, of which the optimizer does not train the router's load.
func ExampleConfig_Params() {
	mixtral := expert.Config{Experts: 8, PerToken: 2, Hidden: 14336, Normalize: true}
	for _, p := range mixtral.Params("h0.moe", 4096, true) {
		fmt.Println(p)
	}
	fmt.Println(mixtral.Buffers("h0.moe"))
	// Output:
	// h0.moe.router.w (Float32)[4096, 8]
	// h0.moe.router.load (Float32)[8]
	// h0.moe.experts.gate.w (Float32)[8, 4096, 14336]
	// h0.moe.experts.up.w (Float32)[8, 4096, 14336]
	// h0.moe.experts.down.w (Float32)[8, 14336, 4096]
	// [h0.moe.router.load]
}

// The first row is multiplied by 10, the next two by 100, and the last one is in no group.
func ExampleGrouped() {
	exec := graph.MustNewExec(devicetest.One(), func(x, w, counts *graph.Node) *graph.Node {
		return expert.Grouped(x, w, counts, precision.Matmul{})
	})
	y := exec.MustCall([][]float32{{1}, {2}, {3}, {4}}, [][][]float32{{{10}}, {{100}}}, []int32{1, 2})[0]
	fmt.Println(y.Value())
	// Output: [[10] [200] [300] [0]]
}

// One of two experts doubles numbers, the other negates them. The router sends a token to the first one if its first
// number is the larger one. Each takes at most two of the four tokens, so the last one is dropped.
func ExampleLayer() {
	layer := expert.Layer{
		Config:   expert.Config{Experts: 2, PerToken: 1, Hidden: 2, Normalize: true, Capacity: 1},
		Activate: func(h []*graph.Node) *graph.Node { return h[0] },
	}
	exec := graph.MustNewExec(devicetest.One(), func(x *graph.Node) []*graph.Node {
		g := x.Graph()
		one := []float32{1, 1}
		p := params.Nodes{
			"moe.router.w":       graph.Const(g, [][]float32{{1, 0}, {0, 1}}),
			"moe.router.load":    graph.Const(g, one),
			"moe.router.kept":    graph.Const(g, one),
			"moe.experts.up.w":   graph.Const(g, [][][]float32{{{1, 0}, {0, 1}}, {{1, 0}, {0, 1}}}),
			"moe.experts.down.w": graph.Const(g, [][][]float32{{{2, 0}, {0, 2}}, {{-1, 0}, {0, -1}}}),
		}
		y, term := layer.Apply(p, "moe", x)
		loss := graph.ReduceAllMean(term) // added to the loss of the model
		changes := graph.Gradient(loss, p["moe.router.load"], p["moe.router.kept"])
		return []*graph.Node{y, graph.Sub(p["moe.router.load"], changes[0]), graph.Sub(p["moe.router.kept"], changes[1])}
	})
	out := exec.MustCall([][][]float32{{{5, 1}, {1, 6}, {7, 1}, {8, 1}}})
	fmt.Println("result:", out[0].Value())
	fmt.Println("load:", out[1].Value())
	fmt.Println("without what is dropped:", out[2].Value())
	// Output:
	// result: [[[10 2] [-1 -6] [14 2] [0 0]]]
	// load: [1.5 0.5]
	// without what is dropped: [1 0.5]
}
