package chain

import (
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/autodiff"
	"github.com/shardbook/shardbook/lib/precision"
)

// Passes builds the forward and the backward pass of a model's blocks, in the types of a precision. Its methods build
// graphs, and panic where a block does.
type Passes struct {
	Model     Model
	Precision precision.Policy
	// Keep has the forward pass return what is costly to make again, which the backward pass then takes
	// ([autodiff.Split]). Otherwise the backward pass computes the block again from its input.
	Keep bool
}

// Operands are what both passes of a block take.
type Operands struct {
	Weights  []*graph.Node // as the block lists its parameters, in any floating-point type
	X        *graph.Node   // the output of the block before, or the model's inputs
	Key, Row *graph.Node   // the noise, or nil
}

// Forward returns the output of block i, and what is kept for its backward pass. The last block keeps nothing, since its
// passes follow each other: its backward pass is both.
func (p Passes) Forward(i int, in Operands) (y *graph.Node, kept []*graph.Node) {
	of := precision.Cast(in.Weights, p.Precision.Compute)
	if !p.keeps(i) {
		return p.apply(i, of, in), nil
	}
	split, operands := p.split(i, of, in)
	out, kept := split.Forward(operands)
	return out[0], kept
}

func (p Passes) keeps(i int) bool { return p.Keep && i < len(p.Model.Blocks)-1 }

func (p Passes) apply(i int, weights []*graph.Node, in Operands) *graph.Node {
	b := p.Model.Blocks[i]
	return b.Apply(b.Params.As(p.Precision.Compute).Nodes(weights), in.X, in.Key, in.Row)
}

// split is block i as a function of the operands that it returns.
func (p Passes) split(i int, weights []*graph.Node, in Operands) (s autodiff.Split, operands []*graph.Node) {
	n := len(weights)
	operands = append(slices.Clone(weights), in.X)
	if in.Key != nil {
		operands = append(operands, in.Key, in.Row)
	}
	s.Fn = func(x []*graph.Node) []*graph.Node {
		again := Operands{X: x[n]}
		if in.Key != nil {
			again.Key, again.Row = x[n+1], x[n+2]
		}
		return []*graph.Node{p.apply(i, x[:n], again)}
	}
	if i > 0 {
		s.Of = append(s.Of, n)
	}
	for k := range weights {
		s.Of = append(s.Of, k)
	}
	return s, operands
}

// Gradients are what the backward pass of a block returns.
type Gradients struct {
	Loss    *graph.Node   // the mean over the batch, in float32; of the last block only
	X       *graph.Node   // the gradient of the block's input; nil for the first block
	Weights []*graph.Node // those of its parameters, in the type that the model computes in
}

// Backward returns the gradients of block i. kept is what Forward kept, and above the gradient of the block's output; for
// the last block it is the targets. There the loss is scaled as the precision says, by the states of the loss scaling.
func (p Passes) Backward(i int, in Operands, kept []*graph.Node, above *graph.Node, scaling []*graph.Node) (g Gradients) {
	of := precision.Cast(in.Weights, p.Precision.Compute)
	var grads []*graph.Node
	if p.keeps(i) {
		split, operands := p.split(i, of, in)
		if len(split.Of) > 0 {
			grads = split.Backward(operands, kept, []*graph.Node{above})
		}
	} else {
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
		if len(of) > 0 {
			grads = graph.Gradient(toward, of...)
		}
	}
	if i > 0 {
		g.X, grads = grads[0], grads[1:]
	}
	g.Weights = grads
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
