package storemodel_test

import (
	"math/rand/v2"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/ml/layers"
	"github.com/gomlx/gomlx/ml/layers/activation"
	"github.com/gomlx/gomlx/ml/layers/attention"
	"github.com/gomlx/gomlx/ml/layers/norm"
	"github.com/gomlx/gomlx/ml/model"
	"github.com/gomlx/gomlx/ml/train/loss"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/params/storemodel"
)

// newStore returns an empty store, in which variables always start at the same values.
func newStore() *model.Store {
	store := model.NewStore()
	store.SetParam(model.ParamInitialSeed, int64(7))
	return store
}

// mlp has two layers, on inputs (B,3) and targets (B,2). It computes its loss in the targets' type.
func mlp(scope *model.Scope, inputs, targets *graph.Node) *graph.Node {
	x := activation.Relu(layers.Dense(scope.In("hidden"), inputs, true, 4))
	x = layers.Dense(scope.In("out"), x, true, 2)
	return loss.MeanSquaredError([]*graph.Node{targets}, []*graph.Node{graph.ConvertDType(x, targets.DType())})
}

var (
	mlpInputs  = shapes.Make(dtypes.Float32, 6, 3)
	mlpTargets = shapes.Make(dtypes.Float32, 6, 2)
)

// transformer is a language model of one block, on tokens (B,T) below 5.
func transformer(scope *model.Scope, inputs, targets *graph.Node) *graph.Node {
	x := layers.Embedding(scope.In("tokens"), graph.InsertAxes(inputs, -1), dtypes.Float32, 5, 4)
	block := scope.In("block%d", 0)
	y := norm.LayerNorm(block.In("before"), x, -1).Done()
	x = graph.Add(x, attention.SelfAttention(block, y, 2, 2).UseProjectionBias(false).WithCausalMask(true).Done())
	logits := layers.Dense(scope.In("head"), x, true, 5)
	labels := []*graph.Node{graph.InsertAxes(targets, -1)}
	return graph.ReduceAllMean(loss.SparseCategoricalCrossEntropyLogits(labels, []*graph.Node{logits}))
}

// bigram predicts each token from the previous one, with parameters of the given type.
func bigram(dtype dtypes.DType) storemodel.Loss {
	return func(scope *model.Scope, inputs, targets *graph.Node) *graph.Node {
		x := layers.Embedding(scope.In("tokens"), graph.InsertAxes(inputs, -1), dtype, 5, 4)
		x = norm.LayerNorm(scope.In("last"), x, -1).Done()
		logits := graph.ConvertDType(layers.Dense(scope.In("head"), x, false, 5), dtypes.Float32)
		return graph.Neg(graph.ReduceAllMean(graph.Mul(graph.OneHot(targets, 5, dtypes.Float32),
			graph.LogSoftmax(logits, -1))))
	}
}

var tokens = shapes.Make(dtypes.Int32, 2, 3)

// random fills a tensor: floats of the normal distribution, or tokens below 5.
func random(rng *rand.Rand, shape shapes.Shape) *tensors.Tensor {
	t := tensors.FromShape(shape)
	t.MustMutableFlatData(func(flat any) {
		switch flat := flat.(type) {
		case []float32:
			for i := range flat {
				flat[i] = float32(rng.NormFloat64())
			}
		case []int32:
			for i := range flat {
				flat[i] = rng.Int32N(5)
			}
		}
	})
	return t
}

// newModel makes a model or fails the test.
func newModel(t testing.TB, backend compute.Backend, store *model.Store, loss storemodel.Loss, inputs,
	targets shapes.Shape) *storemodel.Model {
	t.Helper()
	m := must.Get(storemodel.New(backend, store, loss, inputs, targets))(t)
	return m
}

// initial returns a model's initial values.
func initial(t testing.TB, m *storemodel.Model) []*tensors.Tensor {
	t.Helper()
	values := must.Get(m.Init())(t)
	return values
}

// run builds and runs a graph function once.
func run(t testing.TB, backend compute.Backend, fn func([]*graph.Node) []*graph.Node,
	args ...*tensors.Tensor) []*tensors.Tensor {
	t.Helper()
	exec := must.Get(graph.NewExec(backend, fn))(t)
	defer exec.Finalize()
	out := must.Get(exec.Call(args))(t)
	return out
}

// gradients returns a graph function from parameters, inputs and targets to the loss and the gradients in training.
func gradients(m *storemodel.Model) func([]*graph.Node) []*graph.Node {
	return func(in []*graph.Node) []*graph.Node {
		n := len(m.Params())
		loss := training(m, m.Params().Nodes(in[:n]), in[n], in[n+1])
		return append([]*graph.Node{loss}, graph.Gradient(loss, in[:n]...)...)
	}
}

// training is a model's loss in training, with random numbers of a key.
func training(m *storemodel.Model, p params.Nodes, inputs, targets *graph.Node) *graph.Node {
	g := inputs.Graph()
	return m.NoisyLoss(p, inputs, targets, graph.Const(g, uint32(1)), graph.Const(g, uint32(0)))
}

// named names nodes of any float type; Tree.Nodes requires the tree's own.
func named(m *storemodel.Model, nodes []*graph.Node) params.Nodes {
	named, err := params.Zip(m.Params(), nodes)
	if err != nil {
		panic(err)
	}
	return named
}

// to converts a tensor to another element type.
func to(t testing.TB, backend compute.Backend, x *tensors.Tensor, dtype dtypes.DType) *tensors.Tensor {
	t.Helper()
	return run(t, backend, func(in []*graph.Node) []*graph.Node {
		return []*graph.Node{graph.ConvertDType(in[0], dtype)}
	}, x)[0]
}
