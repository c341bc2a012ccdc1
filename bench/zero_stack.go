package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/train"
)

// stackCase is a deep stack of equal residual blocks, x + tanh(x·up)·down, and its batch.
type stackCase struct {
	Depth int `json:"depth"`
	Width int `json:"width"`
	Rows  int `json:"rows"`
}

func (c stackCase) String() string {
	return fmt.Sprintf("%d blocks, width %d, %d rows", c.Depth, c.Width, c.Rows)
}

// blockBytes is the size of one block's weights.
func (c stackCase) blockBytes() int64 { return 2 * 4 * int64(c.Width) * int64(c.Width) }

// gradientBytes is the size of a device's part of all gradients.
func (c stackCase) gradientBytes() int64 { return c.blockBytes() * int64(c.Depth) / stackDevices }

func (c stackCase) describe(r *record) {
	r.Depth, r.BlockBytes, r.GradientBytes = c.Depth, c.blockBytes(), c.gradientBytes()
}

// model has the numbered arrays of [flashData] as weights, two a block.
func (c stackCase) model() chain.Model {
	var m chain.Model
	for i := range c.Depth {
		up, down := fmt.Sprintf("h%d.up", i), fmt.Sprintf("h%d.down", i)
		m.Blocks = append(m.Blocks, chain.Block{
			Name:   fmt.Sprintf("h%d", i),
			Kind:   "block",
			Params: params.Tree{params.New(up, dtypes.Float32, c.Width, c.Width), params.New(down, dtypes.Float32, c.Width, c.Width)},
			Apply: func(p params.Nodes, x, _, _ *graph.Node) *graph.Node {
				hidden := graph.Tanh(graph.Dot(x, p.Get(up)).Product())
				return graph.Add(x, graph.Dot(hidden, p.Get(down)).Product())
			},
		})
	}
	m.Criterion = squareError
	m.Initial = func() (weights []*tensors.Tensor, err error) {
		for number := range 2 * c.Depth {
			weights = append(weights, numberedArray(number, 1/math.Sqrt(float64(c.Width)), c.Width, c.Width))
		}
		return weights, nil
	}
	return m
}

// batch is the inputs and the targets of every step.
func (c stackCase) batch() (inputs, targets *tensors.Tensor) {
	return numberedArray(2*c.Depth, 1, c.Rows, c.Width), numberedArray(2*c.Depth+1, 1, c.Rows, c.Width)
}

// squareError is the mean of the squared differences.
func squareError(y, targets *graph.Node) *graph.Node {
	return graph.ReduceAllMean(graph.Square(graph.Sub(y, targets)))
}

// numberedArray is the array of [flashData] of that number, scaled.
func numberedArray(number int, scale float64, rows, columns int) *tensors.Tensor {
	flat := flashData(number, rows*columns)
	for i := range flat {
		flat[i] *= float32(scale)
	}
	return tensors.FromFlatDataAndDimensions(flat, rows, columns)
}

// stackXLA is a [trainXLA] of a stack. Nobody asks it for samples.
type stackXLA struct{ trainXLA }

func serveStack(start startRun) func(context.Context) (subject, func(), error) {
	return func(ctx context.Context) (subject, func(), error) {
		backend, err := openXLA(ctx, stackDevices)
		if err != nil {
			return nil, nil, err
		}
		return &stackXLA{trainXLA{backend: backend, start: start}}, backend.Close, nil
	}
}

func (s *stackXLA) prepare(params []byte) error {
	var c stackCase
	if err := json.Unmarshal(params, &c); err != nil {
		return err
	}
	inputs, targets := c.batch()
	return s.begin(train.Recipe{Model: c.model(), Optimizer: optim.AdamW(trainRate)}, inputs, targets)
}
