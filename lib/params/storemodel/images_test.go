package storemodel_test

import (
	"math/rand/v2"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/ml/layers"
	"github.com/gomlx/gomlx/ml/layers/activation"
	"github.com/gomlx/gomlx/ml/layers/norm"
	"github.com/gomlx/gomlx/ml/layers/regularizer"
	"github.com/gomlx/gomlx/ml/model"
	"github.com/gomlx/gomlx/ml/train/loss"

	"github.com/shardbook/shardbook/lib/params/storemodel"
)

// cnn classifies small images with three layers: batch normalization in two of them, dropout and a regularizer.
func cnn(dropout float64) storemodel.Layers {
	return storemodel.Layers{
		{Name: "first", Build: func(scope *model.Scope, x *graph.Node) *graph.Node {
			x = layers.Convolution(scope, x).Channels(4).KernelSize(3).PadSame().UseBias(false).Done()
			x = activation.Relu(norm.BatchNorm(scope, x, -1).Momentum(0.9).Done())
			return graph.MaxPool(x).Window(2).Done()
		}},
		{Name: "second", Build: func(scope *model.Scope, x *graph.Node) *graph.Node {
			scope.SetParam(regularizer.ParamL2, 1e-3)
			x = layers.Convolution(scope, x).Channels(6).KernelSize(3).PadSame().UseBias(false).Done()
			x = activation.Relu(norm.BatchNorm(scope, x, -1).Momentum(0.9).Done())
			return layers.DropoutStatic(scope, x, dropout)
		}},
		{Name: "head", Build: func(scope *model.Scope, x *graph.Node) *graph.Node {
			x = graph.Reshape(x, x.Shape().Dim(0), -1)
			return layers.Dense(scope, layers.DropoutStatic(scope, x, dropout), true, classes)
		}},
	}
}

const classes = 3

// crossEntropy is the mean loss of logits for labels.
func crossEntropy(logits, labels *graph.Node) *graph.Node {
	return graph.ReduceAllMean(loss.SparseCategoricalCrossEntropyLogits([]*graph.Node{labels}, []*graph.Node{logits}))
}

// whole turns a model of layers into one loss.
func whole(l storemodel.Layers) storemodel.Loss {
	return func(scope *model.Scope, inputs, targets *graph.Node) *graph.Node {
		return crossEntropy(l.Build(scope, inputs), targets)
	}
}

var (
	pictures = shapes.Make(dtypes.Float32, 8, 6, 6, 1)
	labels   = shapes.Make(dtypes.Int32, 8, 1)
)

// images are noisy pictures with bars in the third of the columns that the label chooses.
func images(step int) (x, y *tensors.Tensor) {
	rng := rand.New(rand.NewPCG(7, uint64(step)))
	x, y = tensors.FromShape(pictures), tensors.FromShape(labels)
	y.MustMutableFlatData(func(flat any) {
		for i := range flat.([]int32) {
			flat.([]int32)[i] = rng.Int32N(classes)
		}
		x.MustMutableFlatData(func(pixels any) {
			for i := range pixels.([]float32) {
				row, column := i/36, i%6
				pixels.([]float32)[i] = 0.5 * float32(rng.NormFloat64())
				if int32(column/2) == flat.([]int32)[row] {
					pixels.([]float32)[i]++
				}
			}
		})
	})
	return x, y
}

func first(x, _ *tensors.Tensor) *tensors.Tensor  { return x }
func second(_, y *tensors.Tensor) *tensors.Tensor { return y }

func seeded(seed int) *rand.Rand { return rand.New(rand.NewPCG(9, uint64(seed))) }
