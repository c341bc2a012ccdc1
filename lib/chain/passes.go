package chain

import (
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/precision"
)

// Passes builds the forward and the backward pass of a model's blocks, in the types of a precision. Its methods build
// graphs, and panic where a block does.
type Passes struct {
	Model     Model
	Precision precision.Policy
}

// Operands are what both passes of a block take.
type Operands struct {
	Weights  []*graph.Node // as the block lists its parameters, in any floating-point type
	X        *graph.Node   // the output of the block before, or the model's inputs
	Key, Row *graph.Node   // the noise, or nil
}

// Forward returns the output of block i.
func (p Passes) Forward(i int, in Operands) *graph.Node {
	return p.apply(i, precision.Cast(in.Weights, p.Precision.Compute), in)
}

func (p Passes) apply(i int, weights []*graph.Node, in Operands) *graph.Node {
	b := p.Model.Blocks[i]
	return b.Apply(b.Params.As(p.Precision.Compute).Nodes(weights), in.X, in.Key, in.Row)
}

// Gradients are what the backward pass of a block returns.
type Gradients struct {
	Loss    *graph.Node   // the mean over the batch, in float32; of the last block only
	X       *graph.Node   // the gradient of the block's input; nil for the first block
	Weights []*graph.Node // those of its parameters, in the type that the model computes in
}

// Backward returns the gradients of block i, which it computes again from its input. above is the gradient of the block's
// output; for the last block it is the targets. There the loss is scaled as the precision says, by the states of the
// loss scaling.
func (p Passes) Backward(i int, in Operands, above *graph.Node, scaling []*graph.Node) Gradients {
	var g Gradients
	of := precision.Cast(in.Weights, p.Precision.Compute)
	y := p.apply(i, of, in)
	var toward *graph.Node // the scalar whose gradients these are
	if i == len(p.Model.Blocks)-1 {
		toward = graph.ConvertDType(p.Model.Criterion(y, above), p.Precision.Output)
		g.Loss = graph.ConvertDType(toward, dtypes.Float32)
		toward = p.Precision.Scaling.Scale(toward, scaling)
	} else {
		toward = graph.ReduceAllSum(graph.Mul(y, graph.StopGradient(above))) // whose gradient in y is that from above
	}
	if i > 0 {
		of = append([]*graph.Node{in.X}, of...)
	}
	if len(of) == 0 { // a first block with nothing to learn
		return g
	}
	g.Weights = graph.Gradient(toward, of...)
	if i > 0 {
		g.X, g.Weights = g.Weights[0], g.Weights[1:]
	}
	return g
}

// Homes returns, for each block, the places in [Model.Params] of all of its parameters, and of those whose home it is:
// the first block that has them.
func (m Model) Homes() (all, home [][]int) {
	tree, seen := m.Params(), map[string]bool{}
	for _, b := range m.Blocks {
		var places, own []int
		for _, s := range b.Params {
			at := tree.Index(s.Name)
			if places = append(places, at); !seen[s.Name] {
				own = append(own, at)
			}
			seen[s.Name] = true
		}
		all, home = append(all, places), append(home, own)
	}
	return all, home
}

// Twins returns for each block the first block that is the same function of equally shaped parameters in the same place
// of the chain (first, last or between), whose programs it can use: see [Block.Kind].
func (m Model) Twins() []int {
	twins, first := make([]int, len(m.Blocks)), map[string]int{}
	for i, b := range m.Blocks {
		twins[i] = i
		if b.Kind == "" || i == 0 || i == len(m.Blocks)-1 {
			continue
		}
		if j, ok := first[b.Kind]; ok {
			twins[i] = j
		} else {
			first[b.Kind] = i
		}
	}
	return twins
}
