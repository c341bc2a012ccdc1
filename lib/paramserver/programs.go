package paramserver

import (
	"fmt"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/xla"
)

// block is a block's programs.
type block struct {
	chain.Block
	params  []int // its parameters, as places in the model's list
	buckets []int // that its gradients lie in, each once
	// forward computes, from the parameters, the input and the noise, the output and what is kept. The last block has none.
	forward *xla.Portable
	// backward computes the loss (in the last block) and the gradient of the input (but not in the first block), and
	// writes those of the parameters into the buckets, which are donated to it, and returns these. In the last block it takes the
	// targets in place of the gradient of the output. Two vectors say at which offset each gradient begins, and whether
	// it is added to what is there (1) or not (0).
	backward *xla.Portable
}

// places are where the gradients of a block's parameters lie: which of its buckets, for each.
func (e *Engine) places(i int) (of []int, buckets []int) {
	seen := map[int]int{}
	for _, p := range e.all[i] {
		b := e.slots[p].bucket
		if _, ok := seen[b]; !ok {
			seen[b] = len(buckets)
			buckets = append(buckets, b)
		}
		of = append(of, seen[b])
	}
	return of, buckets
}

// compile makes the programs. Blocks that are twins share their forward pass and, where their gradients are spread over
// as many buckets in the same way, the backward pass.
func (e *Engine) compile() error {
	twins, backward := e.model.Twins(), map[string]*xla.Portable{}
	for i, b := range e.model.Blocks {
		of, buckets := e.places(i)
		own := &block{Block: b, params: e.all[i], buckets: buckets}
		e.blocks = append(e.blocks, own)
		var err error
		if twins[i] < i {
			own.forward = e.blocks[twins[i]].forward
		} else if i < len(e.model.Blocks)-1 {
			if own.forward, err = e.program(e.forward(i)); err != nil {
				return err
			}
		}
		spread := fmt.Sprint(twins[i], of)
		if backward[spread] == nil {
			if backward[spread], err = e.program(e.backward(i, of, len(buckets)), rank.Firsts(len(buckets))...); err != nil {
				return err
			}
		}
		own.backward = backward[spread]
	}
	return e.compileServers()
}

// program makes a program, which Close frees.
func (e *Engine) program(fn func(in []*graph.Node) []*graph.Node, donated ...int) (*xla.Portable, error) {
	p, err := xla.CompilePortable(e.backend, fn, donated...)
	if err == nil {
		e.programs = append(e.programs, p)
	}
	return p, err
}

// operands takes those of a block from the front of in.
func (e *Engine) operands(i int, in []*graph.Node) (o chain.Operands, rest []*graph.Node) {
	n := len(e.all[i])
	o.Weights, o.X, rest = in[:n], in[n], in[n+1:]
	if e.model.Noisy {
		o.Key, o.Row, rest = e.recipe.Key(rest[0]), rest[1], rest[2:]
	}
	return o, rest
}

func (e *Engine) forward(i int) func(in []*graph.Node) []*graph.Node {
	return func(in []*graph.Node) []*graph.Node {
		o, _ := e.operands(i, in)
		y, kept := e.passes.Forward(i, o)
		return append([]*graph.Node{y}, kept...)
	}
}

// backward is the backward pass of block i, whose gradients lie in so many buckets: of[k] is the one of its k-th parameter. The program's inputs are, in this order: the buckets, the offsets, the flags, the gradient of the output, the operands, and what was kept.
func (e *Engine) backward(i int, of []int, n int) func(in []*graph.Node) []*graph.Node {
	return func(in []*graph.Node) []*graph.Node {
		buckets, in := append([]*graph.Node{}, in[:n]...), in[n:]
		offsets, flags, above, in := in[0], in[1], in[2], in[3:]
		o, kept := e.operands(i, in)
		g := e.passes.Backward(i, o, kept, above, nil)
		var out []*graph.Node
		for _, x := range []*graph.Node{g.Loss, g.X} {
			if x != nil {
				out = append(out, x)
			}
		}
		for k, grad := range g.Weights {
			b := &buckets[of[k]]
			flat := graph.Reshape(graph.ConvertDType(grad, e.policy.Reduce), grad.Shape().Size())
			at := graph.Squeeze(graph.Slice(offsets, graph.AxisElem(k)))
			before := graph.DynamicSlice(*b, []*graph.Node{at}, []int{flat.Shape().Size()})
			adds := graph.NotEqual(graph.Slice(flags, graph.AxisElem(k)), graph.Const(flags.Graph(), int32(0)))
			flat = graph.Where(graph.BroadcastToShape(adds, before.Shape()), graph.Add(before, flat), flat)
			*b = graph.DynamicUpdateSlice(*b, flat, []*graph.Node{at})
		}
		if len(out)+len(buckets) == 0 {
			return []*graph.Node{graph.Const(above.Graph(), float32(0))}
		}
		return append(out, buckets...)
	}
}

// view returns the gradient that lies at an offset of a bucket, times a factor: one over the number of summands, where
// means are wanted.
func view(bucket *graph.Node, offset int, dimensions []int, factor *graph.Node) *graph.Node {
	size := 1
	for _, d := range dimensions {
		size *= d
	}
	x := graph.Slice(bucket, graph.AxisRange(offset, offset+size))
	return graph.Reshape(rank.Scaled(x, factor), dimensions...)
}
