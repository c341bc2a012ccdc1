package gpt

import (
	"fmt"
	"maps"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/sequence"
	"github.com/shardbook/shardbook/lib/tensor"
)

// layers are the layers of a model as one device computes them, with its groups of tensor and sequence parallelism. The
// groups' zero values are one device, for which they do nothing. Otherwise T, H, K and V in shapes are the device's
// number of tokens, of heads and of vocabulary entries.
type layers struct {
	Config
	tensor   tensor.Group
	sequence sequence.Group
}

func (c Config) oneDevice() layers { return layers{Config: c} }

// columns is [Config.Linear] at several paths, column-parallel: tensor parallelism splits the outputs.
func (c layers) columns(p params.Nodes, x *graph.Node, paths ...string) []*graph.Node {
	var ws []*graph.Node
	for _, at := range paths {
		ws = append(ws, p.Get(at+".w"))
	}
	ys := c.tensor.Columns(x, ws, c.saving(c.Compress))
	for i, at := range paths {
		ys[i] = c.biased(p, at, ys[i])
	}
	return ys
}

// rows is [Config.Linear], row-parallel: tensor parallelism splits the inputs. It saves x in a codec.
func (c layers) rows(p params.Nodes, at string, x *graph.Node, codec string) *graph.Node {
	return c.biased(p, at, c.tensor.Rows(x, p.Get(at+".w"), c.saving(codec)))
}

// sharded returns the parameters, of which those at or below paths are prepared for tensor parallelism: parameters that
// several devices have sum their gradients.
func (c layers) sharded(g *graph.Graph, p params.Nodes, paths ...string) params.Nodes {
	if c.tensor.Alone() {
		return p
	}
	tree, err := c.Params().Under(paths...)
	if err != nil {
		panic(err)
	}
	cuts, err := c.Rules().Cuts(tree, c.tensor.Size(g))
	if err != nil {
		panic(err)
	}
	p = maps.Clone(p)
	var names []string
	var full []*graph.Node
	for i, s := range tree {
		if cuts[i] == nil {
			names, full = append(names, s.Name), append(full, p.Get(s.Name))
		} else {
			p[s.Name] = c.tensor.SumCopies(p.Get(s.Name), cuts[i].Axis, cuts[i])
		}
	}
	for i, node := range c.tensor.Replicated(full) {
		p[names[i]] = node
	}
	return p
}

func (c layers) contextParallel() bool { return len(c.sequence.Axes()) > 0 }

// hasAllTokens says whether the device has all tokens between layers.
func (c layers) hasAllTokens() bool { return !c.contextParallel() && !c.tensor.Sequence }

// positions returns the positions of the device's t tokens within layers: a vector of int32. Padding has Seq or more.
func (c layers) positions(g *graph.Graph, t int) *graph.Node {
	if c.contextParallel() {
		return c.sequence.Positions(g, c.Seq)
	}
	return graph.Iota(g, shapes.Make(dtypes.Int32, t), 0)
}

// tokenPositions returns the positions of the device's tokens between layers, if it has t within them.
func (c layers) tokenPositions(g *graph.Graph, t int) *graph.Node {
	return c.tensor.Tokens(c.positions(g, t), 0)
}

// longest is the largest number of tokens of a sequence that a device may have, including padding.
func (c layers) longest(g *graph.Graph) int {
	if c.contextParallel() {
		return c.sequence.Local(g, c.Seq)
	}
	return c.Seq
}

// heads returns how many query heads, and how many key/value heads, a device has.
func (c layers) heads(g *graph.Graph) (queries, keys int) {
	n := c.tensor.Size(g)
	return c.Heads / n, max(1, c.kvHeads()/n)
}

// headIndices returns the indices of the device's key heads, and of its query heads within those of a key head: vectors
// of int32.
func (c layers) headIndices(g *graph.Graph) (keys, queries *graph.Node) {
	rank, ranks := c.tensor.Rank(g), c.tensor.Size(g)
	ownQueries, ownKeys := c.heads(g)
	run := func(first *graph.Node, n int) *graph.Node {
		return graph.Add(graph.Iota(g, shapes.Make(dtypes.Int32, n), 0), first)
	}
	if sharing := ranks / c.kvHeads(); sharing > 1 { // this number of devices have the same key head
		within := graph.Mod(rank, graph.Const(g, int32(sharing)))
		return run(graph.Div(rank, graph.Const(g, int32(sharing))), 1),
			run(graph.MulScalar(within, ownQueries), ownQueries)
	}
	return run(graph.MulScalar(rank, ownKeys), ownKeys), run(graph.Const(g, int32(0)), ownQueries/ownKeys)
}

// local returns the device's part of the tokens (B,Seq).
func (c layers) local(tokens *graph.Node) *graph.Node {
	if !c.contextParallel() {
		return tokens
	}
	if tokens.Rank() != 2 || tokens.Shape().Dim(1) != c.Seq {
		panic(fmt.Errorf("gpt: tokens have shape %s: with sequence parallelism use (B,T) with T = Config.Seq %d",
			tokens.Shape(), c.Seq))
	}
	return c.sequence.Take(tokens, 1)
}

// loss is the device's part of the mean [CrossEntropy] of its logits (B,T,V) and the targets (B,Seq): the mean over the
// devices that have the other tokens of the same sequences is the mean over all tokens.
func (c layers) loss(logits, targets *graph.Node) *graph.Node {
	each := c.tensor.CrossEntropy(logits, c.local(targets), c.Vocab) // (B,T)
	if !c.contextParallel() {
		return graph.ReduceAllMean(each)
	}
	n, local := each.Shape().Dim(0), each.Shape().Dim(1)
	g := logits.Graph()
	ranks := collective.AxisSize(g, c.sequence.Axes()...)
	if local*ranks > c.Seq { // there is padding
		real := graph.ExpandAndBroadcast(c.sequence.Real(g, c.Seq), []int{n, local}, []int{0})
		each = graph.Where(real, each, graph.ZerosLike(each))
	}
	return graph.MulScalar(graph.ReduceAllSum(each), float64(ranks)/float64(n*c.Seq))
}
