package main

import (
	"fmt"
	"math"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/step"
)

// pipelineRanks is how many ranks a pipeline has.
const pipelineRanks = 4

// pipelineRate is the learning rate of plain gradient descent.
const pipelineRate = 0.1

// Schedules of [pipelineBench].
var (
	trainedKinds = []pipeline.Kind{pipeline.KindGPipe, pipeline.Kind1F1B, pipeline.KindInterleaved}
	// sleptKinds begins with those that PyTorch has too.
	sleptKinds = append(trainedKinds[:3:3], pipeline.KindZBH1, pipeline.KindZBH2, pipeline.KindZBV)
)

// pipelineSize is a stack of layers, gelu(x·w + b), their batch, and how long a layer sleeps that is none.
type pipelineSize struct {
	Layers       int     `json:"layers"`
	Width        int     `json:"width"`
	Rows         int     `json:"rows"`
	Microbatches int     `json:"microbatches"`
	ForwardMS    float64 `json:"forward_ms"`
}

func (s pipelineSize) check() error {
	switch most := stackMost; {
	case s.Layers < 1 || s.Layers > most || s.Layers%(2*pipelineRanks) != 0:
		return fmt.Errorf("--layers=%d: want a multiple of %d, two stages a rank, at most %d", s.Layers, 2*pipelineRanks, most)
	case s.Width < 1 || s.Width > most:
		return fmt.Errorf("--d=%d: want 1 to %d", s.Width, most)
	case s.Microbatches < 1 || s.Microbatches > most || s.Microbatches%pipelineRanks != 0:
		return fmt.Errorf("--microbatches=%d: want a multiple of %d, at most %d", s.Microbatches, pipelineRanks, most)
	case s.Rows < 1 || s.Rows > most || s.Rows%s.Microbatches != 0:
		return fmt.Errorf("--batch=%d: want a multiple of the %d micro-batches, at most %d", s.Rows, s.Microbatches, most)
	case !(s.ForwardMS > 0 && s.ForwardMS <= 1000):
		return fmt.Errorf("--ms=%g: want more than 0, at most 1000", s.ForwardMS)
	}
	return nil
}

// pipelineCase is a size with a schedule.
type pipelineCase struct {
	pipelineSize
	Kind   pipeline.Kind `json:"kind"`
	Ranks  int           `json:"ranks"`
	Stages int           `json:"stages"`
}

func (c pipelineCase) schedule() (*step.Plan, error) {
	return pipeline.NewSchedule(c.Kind, c.Ranks, c.Microbatches, 0)
}

// costs are what the passes of a stage sleep, in milliseconds.
func (c pipelineCase) costs() step.Costs {
	forward := []float64{c.ForwardMS * float64(c.Layers) / float64(c.Stages)}
	return step.Costs{Forward: forward, InputGrad: forward, WeightGrad: forward}
}

// model has the numbered arrays of [flashData] as weights, and biases of 0.
func (c pipelineCase) model() chain.Model {
	var m chain.Model
	for i := range c.Layers {
		name := fmt.Sprintf("h%d", i)
		tree := params.Tree{params.New(name+".w", dtypes.Float32, c.Width, c.Width), params.New(name+".b", dtypes.Float32, c.Width)}
		m.Blocks = append(m.Blocks, chain.Block{Name: name, Kind: "layer", Params: tree, Apply: func(p params.Nodes, x, _, _ *graph.Node) *graph.Node {
			y := graph.Dot(x, p.Get(name+".w")).Product()
			return gpt.GELU(graph.Add(y, graph.ExpandLeftToRank(p.Get(name+".b"), 2)))
		}})
	}
	m.Criterion = squareError
	m.Initial = func() (weights []*tensors.Tensor, err error) {
		for number := range c.Layers {
			// A GELU halves the mean square, about.
			weights = append(weights, numberedArray(number, math.Sqrt(2/float64(c.Width)), c.Width, c.Width),
				tensors.FromShape(shapes.Make(dtypes.Float32, c.Width)))
		}
		return weights, nil
	}
	return m
}

// batch is the inputs and the targets of every step.
func (c pipelineCase) batch() (inputs, targets *tensors.Tensor) {
	return numberedArray(c.Layers, 1, c.Rows, c.Width), numberedArray(c.Layers+1, 1, c.Rows, c.Width)
}
