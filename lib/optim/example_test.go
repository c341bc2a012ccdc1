package optim_test

import (
	"fmt"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
)

// Three steps of SGD on the loss w², whose gradient is 2w.
func ExampleOptimizer() {
	opt := optim.SGD(0.25)
	spec := params.New("w", dtypes.Float32, 2)
	step := must(graph.NewExec(devicetest.One(), func(w *graph.Node) *graph.Node {
		loss := graph.ReduceAllSum(graph.Square(w))
		next, _ := opt.Update(optim.Update{
			Spec:  spec,
			Param: w,
			Grad:  graph.Gradient(loss, w)[0],
			Step:  graph.Const(w.Graph(), int32(1)),
		})
		return next
	}))
	w := tensors.FromValue([]float32{8, -4})
	for range 3 {
		w = must(step.Call1(w))
		fmt.Println(w.Value())
	}
	// Output:
	// [4 -2]
	// [2 -1]
	// [1 -0.5]
}

// The bytes of an optimizer's states.
func ExampleStates() {
	tree := params.Tree{
		params.New("head.w", dtypes.Float32, 256, 256),
		params.New("head.b", dtypes.Float32, 256),
	}
	for _, s := range optim.States(optim.AdamW(3e-4), tree) {
		fmt.Println(s.Name, s.Bytes())
	}
	fmt.Println("SGD", optim.States(optim.SGD(0.1), tree).Bytes())
	// Output:
	// head.w.m 262144
	// head.w.v 262144
	// head.b.m 1024
	// head.b.v 1024
	// SGD 0
}

func ExampleBytesPerParameter() {
	tree := params.Tree{params.New("w", dtypes.BFloat16, 1024, 4096)}
	for _, name := range optim.Names() {
		opt := must(optim.Parse(name, 1e-3))
		fmt.Printf("%-9s %.4g\n", name, optim.BytesPerParameter(opt, tree))
	}
	// Output:
	// adafactor 0.004883
	// adam      8
	// adam8bit  2.031
	// adamw     8
	// lamb      8
	// lion      4
	// momentum  4
	// nesterov  4
	// sgd       0
}

// The usual schedule, warm-up and cosine, and no weight decay for normalization scales and biases.
func ExampleScheduled() {
	schedule := optim.Warmup{Steps: 4, Then: optim.Cosine{Steps: 8, Floor: 0.1}}
	opt := optim.Scheduled(
		optim.Grouped(optim.AdamW(3e-4), optim.Group{Has: optim.Named("*.g", "*.b"), Optimizer: optim.Adam(3e-4)}),
		schedule)
	fmt.Println(opt.Validate())
	for step := 1; step <= 13; step += 2 {
		fmt.Printf("step %2d: %.3f\n", step, schedule.At(step))
	}
	// Output:
	// <nil>
	// step  1: 0.250
	// step  3: 0.750
	// step  5: 1.000
	// step  7: 0.868
	// step  9: 0.550
	// step 11: 0.232
	// step 13: 0.100
}

// The states of one of four ranks: a matrix cut along its rows, as in tensor parallelism, and a flat part, as in ZeRO.
func ExampleStatesOfParts() {
	tree := params.Tree{params.New("up.w", dtypes.Float32, 64, 30), params.New("down.w", dtypes.Float32, 30, 64)}
	parts := []optim.Part{optim.Cut{Axis: 0, Ranks: 4}, optim.Flat{Length: 480}}
	states := must(optim.StatesOfParts(optim.Adafactor(0), tree, parts))
	for _, s := range states {
		if s.Axis < 0 {
			fmt.Println(s, "the same on every rank")
		} else {
			fmt.Println(s, "joined along axis", s.Axis)
		}
	}
	// Output:
	// up.w.rows (Float32)[16] joined along axis 0
	// up.w.columns (Float32)[30] the same on every rank
	// down.w.rows (Float32)[30] the same on every rank
	// down.w.columns (Float32)[64] the same on every rank
}

// The gradients have a global norm of 5, and are scaled to 1.
func ExampleClipByGlobalNorm() {
	exec := must(graph.NewExec(devicetest.One(), func(a, b *graph.Node) []*graph.Node {
		clipped, norm := optim.ClipByGlobalNorm([]*graph.Node{a, b}, 1, nil)
		return append(clipped, norm)
	}))
	out := must(exec.Call([]float32{3, 0}, float32(-4)))
	fmt.Println(out[0].Value(), out[1].Value(), out[2].Value())
	// Output:
	// [0.6 0] -0.8 5
}
