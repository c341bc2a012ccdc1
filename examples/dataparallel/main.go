// Dataparallel trains a model of GoMLX layers on four devices, each with a quarter of every batch, and then uses it in
// GoMLX.
package main

import (
	"fmt"
	"log"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/ml/layers"
	"github.com/gomlx/gomlx/ml/model"

	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/notebook"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params/storemodel"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// predict and loss are plain GoMLX: weights are variables of a store, named by their scopes.
func predict(scope *model.Scope, x *graph.Node) *graph.Node {
	x = graph.Tanh(layers.Dense(scope.In("hidden"), x, true, 16))
	return layers.Dense(scope.In("out"), x, true, 1)
}

func loss(scope *model.Scope, inputs, targets *graph.Node) *graph.Node {
	return graph.ReduceAllMean(graph.Square(graph.Sub(predict(scope, inputs), targets)))
}

func main() {
	backend := notebook.Must(xla.Open(xla.Devices(4)))
	defer backend.Close()
	mesh := notebook.Must(backend.Mesh(xla.Axis(train.Axis, 4)))
	rows := [][]float32{{0, 0}, {0, 1}, {1, 0}, {1, 1}}
	inputs, targets := tensors.FromValue(rows), tensors.FromValue([][]float32{{0}, {1}, {1}, {0}})

	store := model.NewStore()
	network := notebook.Must(storemodel.New(backend, store, loss, inputs.Shape(), targets.Shape()))
	run := notebook.Must(ddp.NewSPMD(mesh, train.Recipe{Model: network, Optimizer: optim.Adam(0.03)}))
	defer run.Close()
	for range 300 {
		notebook.Must(run.Step(inputs, targets)) // each device gets a shard of the batch: here one example
	}
	fmt.Println("a step's collectives:", notebook.Must(run.Collectives()))

	if err := network.Write(notebook.Must(run.Params(0))); err != nil { // all devices have the same parameters
		log.Fatal(err)
	}
	y := notebook.Must(model.CallOnce(backend, store, predict, inputs)).Value().([][]float32)
	for i, row := range rows {
		fmt.Printf("%v xor %v: %v\n", row[0], row[1], y[i][0] > 0.5)
	}
}
