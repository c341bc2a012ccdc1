package optim_test

import (
	"fmt"
	"log"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
)

// Three steps of descent on the loss w², whose gradient is 2w.
func ExampleRule() {
	rule := optim.SGD(0.25)
	step, err := graph.NewExec(devicetest.One(), func(w *graph.Node) *graph.Node {
		loss := graph.ReduceAllSum(graph.Square(w))
		grad := graph.Gradient(loss, w)[0]
		next, _ := rule.Update(w, grad, nil, graph.Const(w.Graph(), int32(1)))
		return next
	})
	if err != nil {
		log.Fatal(err)
	}
	w := tensors.FromValue([]float32{8, -4})
	for range 3 {
		if w, err = step.Call1(w); err != nil {
			log.Fatal(err)
		}
		fmt.Println(w.Value())
	}
	// Output:
	// [4 -2]
	// [2 -1]
	// [1 -0.5]
}

// What an optimizer keeps, in bytes.
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
