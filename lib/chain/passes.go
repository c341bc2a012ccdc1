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
	// Targets, of the last block, have its forward pass end with the loss, in float32, as its output. Without them its
	// passes are one: they follow each other, and nothing is kept between them.
	Targets *graph.Node
}

// Forward returns the output of block i, and what is kept for its backward pass.
func (p Passes) Forward(i int, in Operands) (y *graph.Node, kept []*graph.Node) {
	of := precision.Cast(in.Weights, p.Precision.Compute)
	split, operands := p.split(i, of, in)
	if p.keeps(i, in) {
		var out []*graph.Node
		out, kept = split.Forward(operands)
		y = out[0]
	} else {
		y = split.Fn(operands)[0]
	}
	if in.Targets != nil {
		y = graph.ConvertDType(y, dtypes.Float32)
	}
	return y, kept
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

// split is block i as a function of the operands that it returns; the gradient of its input comes first, where there is
// one.
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

// Gradients are what the backward pass of a block returns.
type Gradients struct {
	Loss    *graph.Node   // the mean over the batch, in float32; of the last block only
	X       *graph.Node   // the gradient of the block's input; nil for the first block
	Weights []*graph.Node // those of its parameters, in the type that the model computes in
}

// Backward returns the gradients of block i. kept is what Forward kept, and above the gradient of the block's output.
// The last block has none above: its loss is scaled as the precision says, by the states of the loss scaling. Where
// Forward did not end with the loss, above is the targets there.
func (p Passes) Backward(i int, in Operands, kept []*graph.Node, above *graph.Node,
	scaling []*graph.Node) (g Gradients) {
	of := precision.Cast(in.Weights, p.Precision.Compute)
	var grads []*graph.Node
	if p.keeps(i, in) {
		split, operands := p.split(i, of, in)
		if len(split.Of) > 0 {
			grads = split.Backward(operands, kept, p.toward(in, above, scaling))
		}
	} else {
		last := i == len(p.Model.Blocks)-1
		if last && in.Targets == nil {
			in.Targets = above
		}
		toward := p.apply(i, of, in) // the scalar whose gradients these are
		if last {
			g.Loss = graph.ConvertDType(toward, dtypes.Float32)
			toward = p.Precision.Scaling.Scale(toward, scaling)
		} else {
			// whose gradient in y is that from above
			toward = graph.ReduceAllSum(graph.Mul(toward, graph.StopGradient(above)))
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

// toward is the gradient of the output of a block: that of the loss is its scale.
func (p Passes) toward(in Operands, above *graph.Node, scaling []*graph.Node) []*graph.Node {
	if in.Targets != nil {
		one := graph.ScalarOne(in.X.Graph(), p.Precision.Output)
		above = p.Precision.Scaling.Scale(one, scaling)
	}
	return []*graph.Node{above}
}

// BackwardInput is the part of Backward that the block before waits for: the gradient of the input, nil for the first
// block, and what BackwardWeights wants for the rest. The passes must keep, and the last block have Targets.
func (p Passes) BackwardInput(i int, in Operands, kept []*graph.Node, above *graph.Node,
	scaling []*graph.Node) (x *graph.Node, left []*graph.Node) {
	split, operands := p.split(i, precision.Cast(in.Weights, p.Precision.Compute), in)
	if i == 0 {
		return nil, nil
	}
	grads, left := split.BackwardFirst(1, operands, slices.Clip(append([]*graph.Node{}, kept...)),
		p.toward(in, above, scaling))
	return grads[0], left
}

// BackwardWeights is the other part: the gradients of the parameters, in the type that the model computes in.
func (p Passes) BackwardWeights(i int, in Operands, kept []*graph.Node, above *graph.Node,
	scaling, left []*graph.Node) []*graph.Node {
	split, operands := p.split(i, precision.Cast(in.Weights, p.Precision.Compute), in)
	if len(in.Weights) == 0 {
		return nil
	}
	first := min(i, 1) // of the first block there is no gradient of the input
	return split.BackwardLater(first, operands, slices.Clip(append([]*graph.Node{}, kept...)),
		p.toward(in, above, scaling), left)
}

// Owners returns, for each block, the places in [Model.Params] of all of its parameters, and of those whose home it is:
// the first block that has them.
func (m Model) Owners() (all, home [][]int) {
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

// SharedPrograms returns for each block the first block that is the same function of equally shaped parameters in the same place
// of the chain (first, last or between), whose programs it can use: see [Block.Kind].
func (m Model) SharedPrograms() []int {
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
