package storemodel_test

import (
	"fmt"
	"log"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/ml/layers"
	"github.com/gomlx/gomlx/ml/model"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/params/storemodel"
)

// A GoMLX model becomes a tree of parameters, and gets new values back.
func Example() {
	predict := func(scope *model.Scope, x *graph.Node) *graph.Node {
		return layers.Dense(scope.In("line"), x, true, 1)
	}
	loss := func(scope *model.Scope, inputs, targets *graph.Node) *graph.Node {
		return graph.ReduceAllMean(graph.Square(graph.Sub(predict(scope, inputs), targets)))
	}
	backend, store := devicetest.One(), model.NewStore()
	m, err := storemodel.New(backend, store, loss, shapes.Make(dtypes.Float32, 8, 2), shapes.Make(dtypes.Float32, 8, 1))
	if err != nil {
		log.Fatal(err)
	}
	for _, spec := range m.Params() {
		fmt.Println(spec)
	}

	// Here a technique trains m.
	trained := []*tensors.Tensor{tensors.FromValue([][]float32{{1}, {2}}), tensors.FromValue([]float32{3})}

	if err := m.Write(trained); err != nil {
		log.Fatal(err)
	}
	exec, err := model.NewExec(backend, store, predict)
	if err != nil {
		log.Fatal(err)
	}
	y, err := exec.Call1([][]float32{{10, 100}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(y.Value())
	// Output:
	// line.dense.weights (Float32)[2, 1]
	// line.dense.biases (Float32)[1]
	// [[213]]
}
