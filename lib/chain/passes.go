package chain

import (
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/autodiff"
	"github.com/shardbook/shardbook/lib/precision"
)

// Passes builds the forward and backward passes of a model's blocks, in the types of a precision policy. Its methods
// build graphs, and panic if a block does.
type Passes struct {
	Model     Model
	Precision precision.Policy
	// Keep makes the forward pass return the activations that are costly to recompute, which the backward pass then
	// takes ([autodiff.Split]). Otherwise the backward pass recomputes the block from its input.
	Keep bool
}

// Operands are the operands of both passes of a block.
type Operands struct {
	Weights  []*graph.Node // in the order of the block's Params, of any floating-point type
	X        *graph.Node   // the output of the block before, or the model's inputs
	Key, Row *graph.Node   // the noise, or nil
	// Targets make the forward pass of the last block end with the loss, in float32. Without them Backward computes the
	// loss from the block's input, and nothing is saved between the passes.
	Targets *graph.Node
}

// Forward returns the output of block i, and the activations saved for its backward pass.
func (p Passes) Forward(i int, in Operands) (y *graph.Node, saved []*graph.Node) {
	of := precision.Cast(in.Weights, p.Precision.Compute)
	split, operands := p.split(i, of, in)
	if p.keeps(i, in) {
		var out []*graph.Node
		out, saved = split.Forward(operands)
		y = out[0]
	} else {
		y = split.Fn(operands)[0]
	}
	if in.Targets != nil {
		y = graph.ConvertDType(y, dtypes.Float32)
	}
	return y, saved
}

func (p Passes) keeps(i int, in Operands) bool {
	return p.Keep && (i < len(p.Model.Blocks)-1 || in.Targets != nil)
}

func (p Passes) apply(i int, weights []*graph.Node, in Operands) *graph.Node {
	b := p.Model.Blocks[i]
	named := b.Params.As(p.Precision.Compute).Nodes(weights)
	if in.Targets == nil {
		return p.Model.apply(i, named, in.X, in.Key, in.Row)
	}
	return graph.ConvertDType(p.Model.end(named, in.X, in.Targets, in.Key, in.Row), p.Precision.Output)
}

// split returns block i as a function of the operands that it also returns. The gradient of the block's input comes
// first, if there is one.
func (p Passes) split(i int, weights []*graph.Node, in Operands) (s autodiff.Split, operands []*graph.Node) {
	n := len(weights)
	operands = append(slices.Clone(weights), in.X)
	for _, x := range []*graph.Node{in.Key, in.Row, in.Targets} {
		if x != nil {
			operands = append(operands, x)
		}
	}
	s.Fn = func(x []*graph.Node) []*graph.Node {
		again, rest := Operands{X: x[n]}, x[n+1:]
		if in.Key != nil {
			again.Key, again.Row, rest = rest[0], rest[1], rest[2:]
		}
		if in.Targets != nil {
			again.Targets = rest[0]
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

// Gradients are the results of a block's backward pass.
type Gradients struct {
	Loss    *graph.Node   // mean over the batch, in float32; only of the last block
	X       *graph.Node   // of the block's input; nil for the first block
	Weights []*graph.Node // of its parameters, in the compute type
}

// Backward returns the gradients of block i from the activations that Forward saved and the gradient of the block's
// output. The last block has no output gradient: its loss is scaled by the states of loss scaling. If in.Targets is nil
// there, outGrad is the targets.
func (p Passes) Backward(i int, in Operands, saved []*graph.Node, outGrad *graph.Node,
	scaling []*graph.Node) (g Gradients) {
	of := precision.Cast(in.Weights, p.Precision.Compute)
	var grads []*graph.Node
	if p.keeps(i, in) {
		split, operands := p.split(i, of, in)
		if len(split.Of) > 0 {
			grads = split.Backward(operands, saved, p.outGradient(in, outGrad, scaling))
		}
	} else {
		last := i == len(p.Model.Blocks)-1
		if last && in.Targets == nil {
			in.Targets = outGrad
		}
		toward := p.apply(i, of, in) // the scalar to differentiate
		if last {
			g.Loss = graph.ConvertDType(toward, dtypes.Float32)
			toward = p.Precision.Scaling.Scale(toward, scaling)
		} else {
			toward = graph.ReduceAllSum(graph.Mul(toward, graph.StopGradient(outGrad))) // its gradient in y is outGrad
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

// outGradient returns the gradient of a block's output, which for the loss is its scale.
func (p Passes) outGradient(in Operands, outGrad *graph.Node, scaling []*graph.Node) []*graph.Node {
	if in.Targets != nil {
		one := graph.ScalarOne(in.X.Graph(), p.Precision.Output)
		outGrad = p.Precision.Scaling.Scale(one, scaling)
	}
	return []*graph.Node{outGrad}
}

// BackwardInput is the first part of a backward pass in two parts, which the previous block waits for: it returns the
// gradient of the input, nil for the first block, and the values that BackwardWeights needs. It requires Keep, and
// Targets for the last block.
func (p Passes) BackwardInput(i int, in Operands, saved []*graph.Node, outGrad *graph.Node,
	scaling []*graph.Node) (x *graph.Node, forWeights []*graph.Node) {
	split, operands := p.split(i, precision.Cast(in.Weights, p.Precision.Compute), in)
	if i == 0 {
		return nil, nil
	}
	grads, forWeights := split.BackwardFirst(1, operands, slices.Clip(append([]*graph.Node{}, saved...)),
		p.outGradient(in, outGrad, scaling))
	return grads[0], forWeights
}

// BackwardWeights is the second part: it returns the gradients of the parameters, in the compute type.
func (p Passes) BackwardWeights(i int, in Operands, saved []*graph.Node, outGrad *graph.Node,
	scaling, forWeights []*graph.Node) []*graph.Node {
	split, operands := p.split(i, precision.Cast(in.Weights, p.Precision.Compute), in)
	if len(in.Weights) == 0 {
		return nil
	}
	first := min(i, 1) // the first block has no gradient of its input
	return split.BackwardLater(first, operands, slices.Clip(append([]*graph.Node{}, saved...)),
		p.outGradient(in, outGrad, scaling), forWeights)
}

// Owners returns, for each block, the indices in [Model.Params] of all of its parameters, and of those that no earlier
// block has.
func (m Model) Owners() (all, owned [][]int) {
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
		all, owned = append(all, places), append(owned, own)
	}
	return all, owned
}

// SharedPrograms returns, for each block, the first block whose programs it can use: a block of the same [Block.Kind]
// that is neither first nor last in the chain, or the block itself.
func (m Model) SharedPrograms() []int {
	programs, first := make([]int, len(m.Blocks)), map[string]int{}
	for i, b := range m.Blocks {
		programs[i] = i
		if b.Kind == "" || i == 0 || i == len(m.Blocks)-1 {
			continue
		}
		if j, ok := first[b.Kind]; ok {
			programs[i] = j
		} else {
			first[b.Kind] = i
		}
	}
	return programs
}
