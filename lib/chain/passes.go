package chain

import (
	"fmt"
	"strings"
	"sync"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
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
	// takes ([autodiff.Split]). Without it there is no backward pass, and blocks need not have gradients.
	Keep bool
}

// Operands are the operands of both passes of a block.
type Operands struct {
	Weights  []*graph.Node // in the order of the block's Params, of any floating-point type
	X        *graph.Node   // the output of the block before, or the model's inputs
	Key, Row *graph.Node   // the noise, or nil
	Targets  *graph.Node   // of the last block, which ends with the loss, in float32; nil for others
}

// Forward returns the output of block i, and the activations saved for its backward pass.
func (p Passes) Forward(i int, in Operands) (y *graph.Node, saved []*graph.Node) {
	split, operands := p.split(i, in)
	var out []*graph.Node
	if p.Keep {
		out, saved = split.Forward(operands)
	} else {
		out = split.Fn(operands)
	}
	if in.Targets != nil {
		return graph.ConvertDType(out[0], dtypes.Float32), saved
	}
	return out[0], saved
}

func (p Passes) apply(i int, weights []*graph.Node, in Operands) *graph.Node {
	b := p.Model.Blocks[i]
	named := b.Params.As(p.Precision.Compute).Nodes(weights)
	if in.Targets == nil {
		return p.Model.apply(i, named, in.X, in.Key, in.Row)
	}
	return graph.ConvertDType(p.Model.end(named, in.X, in.Targets, in.Key, in.Row), p.Precision.Output)
}

// split returns block i as a function of the operands that it also returns. The gradient of its input comes first.
func (p Passes) split(i int, in Operands) (s autodiff.Split, operands []*graph.Node) {
	n := len(in.Weights)
	operands = append(precision.Cast(in.Weights, p.Precision.Compute), in.X)
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
	for k := range n {
		s.Of = append(s.Of, k)
	}
	return s, operands
}

// Backward returns the gradients of block i, of its input (nil for the first block) and of its parameters, in the
// compute type, from the activations that Forward saved and the gradient of the block's output. The last block has no
// output gradient: its loss is scaled by the states of loss scaling. It requires Keep.
func (p Passes) Backward(i int, in Operands, saved []*graph.Node, outGrad *graph.Node,
	scaling []*graph.Node) (x *graph.Node, weights []*graph.Node) {
	split, operands := p.split(i, in)
	if len(split.Of) > 0 {
		weights = split.Backward(operands, saved, p.outGradient(in, outGrad, scaling))
	}
	if i > 0 {
		x, weights = weights[0], weights[1:]
	}
	return x, weights
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
// gradient of the input, nil for the first block, and the values that BackwardWeights needs.
func (p Passes) BackwardInput(i int, in Operands, saved []*graph.Node, outGrad *graph.Node,
	scaling []*graph.Node) (x *graph.Node, forWeights []*graph.Node) {
	if i == 0 {
		return nil, nil
	}
	split, operands := p.split(i, in)
	saved = append([]*graph.Node{}, saved...) // not nil: the forward pass has saved
	grads, forWeights := split.BackwardFirst(1, operands, saved, p.outGradient(in, outGrad, scaling))
	return grads[0], forWeights
}

// BackwardWeights is the second part: it returns the gradients of the parameters, in the compute type.
func (p Passes) BackwardWeights(i int, in Operands, saved []*graph.Node, outGrad *graph.Node,
	scaling, forWeights []*graph.Node) []*graph.Node {
	if len(in.Weights) == 0 {
		return nil
	}
	split, operands := p.split(i, in)
	first := min(i, 1) // the first block has no gradient of its input
	saved = append([]*graph.Node{}, saved...)
	return split.BackwardLater(first, operands, saved, p.outGradient(in, outGrad, scaling), forWeights)
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

// Kinds checks, once per model, that blocks of one [Block.Kind] are the same function. They share programs, so
// otherwise a different model would be trained.
type Kinds struct {
	mu   sync.Mutex
	done bool
}

// TextOf returns the text of a graph function's program for one device: xla.Backend.Text.
type TextOf = func(fn func(in []*graph.Node) []*graph.Node, in ...shapes.Shape) (string, error)

// Check builds the graphs of the blocks that share programs ([Model.SharedPrograms]) and of their gradients, for inputs
// of a shape, and returns an error if two blocks of one kind differ. It compiles nothing. Once it has succeeded, later
// calls return at once.
func (k *Kinds) Check(text TextOf, p Passes, inputs shapes.Shape) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.done {
		return nil
	}
	firsts, last := p.Model.SharedPrograms(), -1
	for i, first := range firsts {
		if first < i {
			last = i // later blocks share no programs
		}
	}
	x, texts, of := inputs, make([]string, last+1), make([]shapes.Shape, last+1) // texts, and shapes of their inputs
	for i := range last + 1 {
		own, y, err := p.text(text, i, x)
		if err != nil {
			return fmt.Errorf("chain: %w", err)
		}
		first := firsts[i]
		if texts[i], of[i] = own, x; !of[first].Equal(x) {
			if texts[first], _, err = p.text(text, first, x); err != nil {
				return fmt.Errorf("chain: %w", err)
			}
			of[first] = x
		}
		if at := difference(texts[first], own); at != "" {
			a, b := p.Model.Blocks[first], p.Model.Blocks[i]
			return fmt.Errorf("chain: blocks %q and %q are of the kind %q, but not one function (%s): give them two "+
				"kinds, or make what differs a parameter", a.Name, b.Name, b.Kind, at)
		}
		x = y
	}
	k.done = true
	return nil
}

// text returns the program of a block and its gradients, and the shape of the block's output.
func (p Passes) text(text TextOf, i int, x shapes.Shape) (program string, y shapes.Shape, err error) {
	var in []shapes.Shape
	for _, s := range p.Model.Blocks[i].Params.As(p.Precision.Compute) {
		in = append(in, s.Shape)
	}
	n := len(in)
	in = append(in, x)
	if p.Model.Noisy {
		in = append(in, shapes.Make(dtypes.Uint32), shapes.Make(dtypes.Uint32))
	}
	program, err = text(func(in []*graph.Node) []*graph.Node {
		o, toward := Operands{X: in[n]}, in[:n:n]
		if p.Model.Noisy {
			o.Key, o.Row = in[n+1], in[n+2]
		}
		if i > 0 { // inputs of the model have no gradient
			toward = append(toward, o.X)
		}
		out := p.apply(i, in[:n], o)
		y = out.Shape()
		if len(toward) == 0 {
			return []*graph.Node{out}
		}
		return append(graph.Gradient(graph.ReduceAllSum(out), toward...), out)
	}, in...)
	return program, y, err
}

// difference returns the first lines that differ, or "".
func difference(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return fmt.Sprintf("%.100s, and %.100s", strings.TrimSpace(x[i]), strings.TrimSpace(y[i]))
		}
	}
	return ""
}
