// Dataparallel trains a model written with GoMLX's layers on four devices, each of which has a quarter of every batch, and
// goes on with it in GoMLX.
//
// Output:
//
//	a step's collectives: all-reduce ×1, 264 B
//	0 xor 0: false
//	0 xor 1: true
//	1 xor 0: true
//	1 xor 1: false
package main

import (
	"fmt"
	"log"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/ml/layers"
	"github.com/gomlx/gomlx/ml/model"

	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params/storemodel"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// predict and loss are plain GoMLX: weights are variables of a store, found by their scopes.
func predict(scope *model.Scope, x *graph.Node) *graph.Node {
	x = graph.Tanh(layers.Dense(scope.In("hidden"), x, true, 16))
	return layers.Dense(scope.In("out"), x, true, 1)
}

func loss(scope *model.Scope, inputs, targets *graph.Node) *graph.Node {
	return graph.ReduceAllMean(graph.Square(graph.Sub(predict(scope, inputs), targets)))
}

func main() {
	backend := must(xla.Open(xla.Devices(4)))
	defer backend.Close()
	mesh := must(backend.Mesh(xla.Axis(train.Axis, 4)))
	rows := [][]float32{{0, 0}, {0, 1}, {1, 0}, {1, 1}}
	inputs, targets := tensors.FromValue(rows), tensors.FromValue([][]float32{{0}, {1}, {1}, {0}})

	store := model.NewStore()
	network := must(storemodel.New(backend, store, loss, inputs.Shape(), targets.Shape()))
	run := must(ddp.NewSPMD(mesh, train.Recipe{Model: network, Rule: optim.Adam(0.03)}))
	defer run.Close()
	for range 300 {
		must(run.Step(inputs, targets)) // a device takes its part of the rows: here one
	}
	fmt.Println("a step's collectives:", must(run.Collectives()))

	if err := network.Write(must(run.Params(0))); err != nil { // device 0 has what all have
		log.Fatal(err)
	}
	y := must(model.CallOnce(backend, store, predict, inputs)).Value().([][]float32)
	for i, row := range rows {
		fmt.Printf("%v xor %v: %v\n", row[0], row[1], y[i][0] > 0.5)
	}
}

// must ends the program where a call failed.
func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
