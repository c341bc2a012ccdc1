package pipeline

import (
	"errors"
	"fmt"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/pipeline/schedule"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// block is a block's programs. Those of the backward pass take the sums of the gradients so far, donated, and return them with what
// the micro-batch adds.
type block struct {
	chain.Block
	params []int // its parameters, as places in the model's list
	// forward computes the output, of the last block the loss, and what is kept.
	forward *xla.Portable
	// backward computes the gradient of the input (but not in the first block) and adds up those of the parameters.
	backward *xla.Portable
	// input computes the gradient of the input, and what it leaves for weights, which adds up those of the parameters. The
	// first block has no input, and one without parameters no weights.
	input, weights *xla.Portable
	keeps          *int // how many values forward keeps
}

// compile makes the programs. Blocks that are twins share theirs.
func (e *Engine) compile() (err error) {
	all, _ := e.model.Homes()
	for i, twin := range e.model.Twins() {
		b := &block{Block: e.model.Blocks[i], params: all[i]}
		if twin < i {
			like := *e.blocks[twin]
			like.Block, like.params = b.Block, b.params
			e.blocks = append(e.blocks, &like)
			continue
		}
		b.keeps = new(int)
		e.blocks = append(e.blocks, b)
		sums := rank.Firsts(len(b.params))
		var errs [4]error
		b.forward, errs[0] = e.program(e.forward(i))
		b.backward, errs[1] = e.program(e.backward(i), sums...)
		if i > 0 {
			b.input, errs[2] = e.program(e.input(i))
		}
		if len(sums) > 0 {
			b.weights, errs[3] = e.program(e.weightGrads(i), sums...)
		}
		if err := errors.Join(errs[:]...); err != nil {
			return err
		}
	}
	e.add, err = e.program(func(in []*graph.Node) []*graph.Node {
		sum := in[0]
		for _, x := range in[1:] {
			sum = graph.Add(sum, x)
		}
		return []*graph.Node{sum}
	})
	return err
}

// someType is the type of the flag that says whether there is anything in the sums.
const someType = dtypes.Int32

func (e *Engine) last(i int) bool { return i == len(e.model.Blocks)-1 }

// operands takes those of a block from the front of in.
func (e *Engine) operands(i int, in []*graph.Node) (o chain.Operands, rest []*graph.Node) {
	n := len(e.blocks[i].params)
	o.Weights, o.X, rest = in[:n], in[n], in[n+1:]
	if e.model.Noisy {
		o.Key, o.Row, rest = e.recipe.Key(rest[0]), rest[1], rest[2:]
	}
	if e.last(i) {
		o.Targets, rest = rest[0], rest[1:]
	}
	return o, rest
}

// above takes the gradient of a block's output, or the states of the loss scaling, from the front of in.
func (e *Engine) above(i int, in []*graph.Node) (above *graph.Node, scaling, rest []*graph.Node) {
	if !e.last(i) {
		return in[0], nil, in[1:]
	}
	n := len(e.policy.Scaling.States())
	return nil, in[:n], in[n:]
}

func (e *Engine) forward(i int) func(in []*graph.Node) []*graph.Node {
	return func(in []*graph.Node) []*graph.Node {
		o, _ := e.operands(i, in)
		y, kept := e.passes.Forward(i, o)
		return append([]*graph.Node{y}, kept...)
	}
}

// backward takes the sums, 1 or 0 for whether anything is in them, the gradient of the output, the operands, and what was kept.
func (e *Engine) backward(i int) func(in []*graph.Node) []*graph.Node {
	return func(in []*graph.Node) []*graph.Node {
		n := len(e.blocks[i].params)
		above, scaling, rest := e.above(i, in[n+1:])
		o, kept := e.operands(i, rest)
		g := e.passes.Backward(i, o, kept, above, scaling)
		sums := e.sums(in[:n], in[n], g.Weights)
		if g.X != nil {
			return append([]*graph.Node{g.X}, sums...)
		}
		return orZero(sums, in)
	}
}

// input takes the gradient of the output, the operands, and what was kept.
func (e *Engine) input(i int) func(in []*graph.Node) []*graph.Node {
	return func(in []*graph.Node) []*graph.Node {
		above, scaling, rest := e.above(i, in)
		o, kept := e.operands(i, rest)
		x, left := e.passes.BackwardInput(i, o, kept, above, scaling)
		return append([]*graph.Node{x}, left...)
	}
}

// weightGrads takes what backward does, and then what input left.
func (e *Engine) weightGrads(i int) func(in []*graph.Node) []*graph.Node {
	return func(in []*graph.Node) []*graph.Node {
		n := len(e.blocks[i].params)
		above, scaling, rest := e.above(i, in[n+1:])
		o, rest := e.operands(i, rest)
		kept, left := rest[:*e.blocks[i].keeps], rest[*e.blocks[i].keeps:]
		return e.sums(in[:n], in[n], e.passes.BackwardWeights(i, o, kept, above, scaling, left))
	}
}

// sums adds gradients to what is there, if anything is.
func (e *Engine) sums(before []*graph.Node, some *graph.Node, grads []*graph.Node) []*graph.Node {
	after := make([]*graph.Node, len(grads))
	for k, g := range grads {
		g = graph.ConvertDType(g, e.policy.Reduce)
		adds := graph.NotEqual(some, graph.ZerosLike(some))
		after[k] = graph.Where(graph.BroadcastToShape(adds, g.Shape()), graph.Add(before[k], g), g)
	}
	return after
}

// orZero returns something where there is nothing, since a program must.
func orZero(out, in []*graph.Node) []*graph.Node {
	if len(out) > 0 {
		return out
	}
	return []*graph.Node{graph.Const(in[0].Graph(), float32(0))}
}

// sizes are the shapes of what passes between a block's programs.
type sizes struct {
	weights, sums, operands, above, kept, left []shapes.Shape
	x, y                                       shapes.Shape
}

// measure builds the blocks' graphs, one after another, to see what they return.
func (e *Engine) measure(inputs, targets shapes.Shape) (all []sizes, err error) {
	mesh, err := e.backend.Mesh(xla.Axis(train.Axis, 1))
	if err != nil {
		return nil, err
	}
	if err := e.kinds.Check(e.backend.Text, e.passes, inputs); err != nil {
		return nil, err
	}
	x := inputs
	for i, b := range e.blocks {
		var s sizes
		for _, at := range b.params {
			s.weights = append(s.weights, e.tree[at].Shape)
			s.sums = append(s.sums, shapes.Make(e.policy.Reduce, e.tree[at].Shape.Dimensions...))
		}
		s.x = x
		s.operands = append(append(s.operands, s.weights...), x)
		if e.model.Noisy {
			s.operands = append(s.operands, shapes.Make(dtypes.Int32), shapes.Make(dtypes.Uint32))
		}
		if e.last(i) {
			s.operands = append(s.operands, targets)
			for _, state := range e.policy.Scaling.States() {
				s.above = append(s.above, state.Shape)
			}
		}
		out, err := mesh.Shapes(e.forward(i), s.operands...)
		if err != nil {
			return nil, fmt.Errorf("pipeline: block %q, of an input of shape %s: %w", b.Name, x, err)
		}
		s.y, s.kept = out[0], out[1:]
		if n := len(s.kept); *b.keeps != n { // or others may be reading it
			*b.keeps = n
		}
		if !e.last(i) {
			s.above = []shapes.Shape{s.y}
		}
		if i > 0 {
			if out, err = mesh.Shapes(e.input(i), join(s.above, s.operands, s.kept)...); err != nil {
				return nil, fmt.Errorf("pipeline: the gradient of block %q: %w", b.Name, err)
			}
			s.left = out[1:]
		}
		all = append(all, s)
		x = s.y
	}
	return all, nil
}

func join(lists ...[]shapes.Shape) (all []shapes.Shape) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

// prepare compiles the programs of the passes that there are.
func (b *block) prepare(s sizes, passes map[schedule.Pass]bool) error {
	some := shapes.Make(someType)
	errs := []error{b.forward.Prepare(s.operands...)}
	if passes[schedule.Backward] {
		errs = append(errs, b.backward.Prepare(join(s.sums, []shapes.Shape{some}, s.above, s.operands, s.kept)...))
	}
	if passes[schedule.InputGrad] && b.input != nil {
		errs = append(errs, b.input.Prepare(join(s.above, s.operands, s.kept)...))
	}
	if passes[schedule.WeightGrad] && b.weights != nil {
		errs = append(errs, b.weights.Prepare(join(s.sums, []shapes.Shape{some}, s.above, s.operands, s.kept, s.left)...))
	}
	return errors.Join(errs...)
}
