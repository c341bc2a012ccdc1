package storemodel_test

import (
	"context"
	"fmt"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/ml/layers"
	"github.com/gomlx/gomlx/ml/layers/norm"
	"github.com/gomlx/gomlx/ml/model"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/notebook"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/params/storemodel"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
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
	m := notebook.Must(storemodel.New(backend, store, loss, shapes.Make(dtypes.Float32, 8, 2),
		shapes.Make(dtypes.Float32, 8, 1)))
	for _, spec := range m.Params() {
		fmt.Println(spec)
	}

	// Here a technique trains m.
	trained := []*tensors.Tensor{tensors.FromValue([][]float32{{1}, {2}}), tensors.FromValue([]float32{3})}

	notebook.Check(m.Write(trained))
	exec := notebook.Must(model.NewExec(backend, store, predict))
	y := notebook.Must(exec.Call1([][]float32{{10, 100}}))
	fmt.Println(y.Value())
	// Output:
	// line.dense.weights (Float32)[2, 1]
	// line.dense.biases (Float32)[1]
	// [[213]]
}

// A GoMLX model in two layers, with batch normalization and dropout, trains in a pipeline of two devices.
func ExampleNewChain() {
	ctx := context.Background()
	backend, err := xla.Open(xla.Devices(2), xla.Plugin("cpu"))
	notebook.Check(err)
	defer backend.Close()
	rows := [][]float32{{0, 0}, {0, 1}, {1, 0}, {1, 1}, {0, 0}, {0, 1}, {1, 0}, {1, 1}}
	inputs, targets := tensors.FromValue(rows), tensors.FromValue([][]float32{{0}, {1}, {1}, {0}, {0}, {1}, {1}, {0}})

	body := func(scope *model.Scope, x *graph.Node) *graph.Node {
		x = graph.Tanh(layers.Dense(scope, x, true, 32))
		return layers.DropoutStatic(scope, norm.BatchNorm(scope, x, -1).Done(), 0.1)
	}
	head := func(scope *model.Scope, x *graph.Node) *graph.Node { return layers.Dense(scope, x, true, 1) }
	criterion := func(y, targets *graph.Node) *graph.Node {
		return graph.ReduceAllMean(graph.Square(graph.Sub(y, targets)))
	}

	network := storemodel.Layers{{Name: "body", Build: body}, {Name: "head", Build: head}}
	store := model.NewStore()
	store.SetParam(model.ParamInitialSeed, int64(7))
	m, err := storemodel.NewChain(backend, store, network, criterion, inputs.Shape(), targets.Shape())
	notebook.Check(err)
	for _, name := range m.BufferNames() {
		fmt.Println("not trained:", name)
	}
	recipe := train.Recipe{Model: m, Optimizer: optim.AdamW(0.03)}
	run, err := parallel.New(ctx, backend, recipe, parallel.Layout{Pipe: 2}, parallel.Options{})
	notebook.Check(err)
	defer run.Close()
	for range 200 {
		_, err := run.Step(ctx, inputs, targets)
		notebook.Check(err)
	}

	named, err := run.Params(ctx)
	notebook.Check(err)
	values, err := named.List(m.Params())
	notebook.Check(err)
	notebook.Check(m.Write(values))
	y, err := model.CallOnce(backend, store, network.Build, inputs)
	notebook.Check(err)
	for i, row := range rows[:4] {
		fmt.Printf("%v xor %v: %t\n", row[0], row[1], y.Value().([][]float32)[i][0] > 0.5)
	}
	// Output:
	// not trained: body.batch_normalization.mean
	// not trained: body.batch_normalization.variance
	// not trained: body.batch_normalization.avg_weight
	// 0 xor 0: false
	// 0 xor 1: true
	// 1 xor 0: true
	// 1 xor 1: false
}
