// Package toy has a model for tests, and batches for it, that compile fast.
package toy

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/params"
)

// Model is an MLP of four layers, which compiles fast. One of its parameters is unused, and one is used twice if it is
// tied.
func Model(tied bool) chain.Model { return Layers(4, tied) }

// Layers is Model with n layers, at least 2. Those between the first and the last are of one kind, and share programs.
func Layers(n int, tied bool) chain.Model {
	const width = 6
	layer := func(name, kind string, in, out int) chain.Block {
		tree := params.Tree{params.New(name+".w", dtypes.Float32, in, out), params.New(name+".b", dtypes.Float32, out)}
		return chain.Block{Name: name, Kind: kind, Params: tree,
			Apply: func(p params.Nodes, x, _, _ *graph.Node) *graph.Node {
				w := p.Get(name + ".w")
				x = graph.ConvertDType(x, w.DType())
				return graph.Tanh(graph.Add(graph.Dot(x, w).Product(), graph.ExpandLeftToRank(p.Get(name+".b"), 2)))
			}}
	}
	scale := params.New("scale", dtypes.Float32)
	first, last := layer("in", "", 4, width), layer("out", "", width, 3)
	idle := params.New("idle", dtypes.Float32, 5)
	first.Params = append(first.Params, scale, idle)
	if tied {
		last.Params = append(last.Params, scale)
	}
	for _, b := range []*chain.Block{&first, &last} {
		apply := b.Apply
		b.Apply = func(p params.Nodes, x, key, row *graph.Node) *graph.Node {
			if y := apply(p, x, key, row); p["scale"] != nil && (b == &first || tied) {
				return graph.Mul(y, p.Get("scale"))
			} else {
				return y
			}
		}
	}
	m := chain.Model{Blocks: []chain.Block{first}}
	for i := range n - 2 {
		m.Blocks = append(m.Blocks, layer(fmt.Sprint("h", i), "h", width, width))
	}
	m.Blocks = append(m.Blocks, last)
	m.Criterion = func(y, targets *graph.Node) *graph.Node {
		return graph.ReduceAllMean(graph.Square(graph.Sub(graph.ConvertDType(y, targets.DType()), targets)))
	}
	m.Initial = func() (values []*tensors.Tensor, err error) {
		random := rand.New(rand.NewPCG(1, 2))
		for _, s := range m.Params() {
			flat := make([]float32, s.Size())
			for i := range flat {
				flat[i] = float32(random.NormFloat64()) / 2
			}
			values = append(values, tensors.FromFlatDataAndDimensions(flat, s.Shape.Dimensions...))
		}
		return values, nil
	}
	return m
}

// Buffered is Model with two buffers: the mean of the last outputs, multiplied, and one that is frozen.
func Buffered(times float64) chain.Model {
	m := Model(false)
	last := &m.Blocks[3]
	m.Buffers = []string{"mean", "frozen"}
	last.Params = append(last.Params, params.New("mean", dtypes.Float32, 3), params.New("frozen", dtypes.Float32, 3))
	last.Loss = func(p params.Nodes, x, targets, key, row *graph.Node) *graph.Node {
		y := graph.Add(last.Apply(p, x, key, row), graph.ExpandLeftToRank(graph.StopGradient(p.Get("frozen")), 2))
		old := p.Get("mean")
		change := graph.StopGradient(graph.Sub(old, graph.MulScalar(graph.ReduceMean(y, 0), times)))
		zero := graph.ReduceAllSum(graph.Mul(change, graph.Sub(old, graph.StopGradient(old)))) // with this gradient
		return graph.Add(m.Criterion(y, targets), graph.ConvertDType(zero, targets.DType()))
	}
	return m
}

// Unlike is Layers with a layer that differs from the others of its kind.
func Unlike() chain.Model {
	m := Layers(5, false)
	apply := m.Blocks[3].Apply
	m.Blocks[3].Apply = func(p params.Nodes, x, key, row *graph.Node) *graph.Node {
		return graph.MulScalar(apply(p, x, key, row), 3)
	}
	return m
}

// Picky is Model that refuses every batch.
func Picky() chain.Model {
	m := Model(false)
	m.Check = func(_, _ *tensors.Tensor) error { return errors.New("toy: not this batch: give another") }
	return m
}

// Batch is the batch of a step: the same in every call.
func Batch(step, rows int) (inputs, targets *tensors.Tensor) {
	random := rand.New(rand.NewPCG(3, uint64(step)))
	x, y := make([]float32, 4*rows), make([]float32, 3*rows)
	for i := range x {
		x[i] = float32(random.NormFloat64())
	}
	for i := range y {
		y[i] = float32(math.Tanh(float64(x[4*(i/3)+i%3]))) / 2
	}
	return tensors.FromFlatDataAndDimensions(x, rows, 4), tensors.FromFlatDataAndDimensions(y, rows, 3)
}

// Batches gives the batches of a number of examples, by step.
func Batches(rows int) func(step int) (inputs, targets *tensors.Tensor) {
	return func(step int) (*tensors.Tensor, *tensors.Tensor) { return Batch(step, rows) }
}
