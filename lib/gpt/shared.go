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

// layers are a model's as a device computes them: the groups say with whom. Their zero values are one device alone, for
// which they do nothing. In shapes, T, H, K and V are then what the device has of the tokens, the heads and the
// vocabulary.
type layers struct {
	Config
	tensor   tensor.Group
	sequence sequence.Group
}

func (c Config) alone() layers { return layers{Config: c} }

// columns is [Config.Linear] at several paths for maps whose outputs devices share.
func (c layers) columns(p params.Nodes, x *graph.Node, paths ...string) []*graph.Node {
	var ws []*graph.Node
	for _, at := range paths {
		ws = append(ws, p.Get(at+".w"))
	}
	ys := c.tensor.Columns(x, ws, c.product(c.Compress))
	for i, at := range paths {
		ys[i] = c.biased(p, at, ys[i])
	}
	return ys
}

// rows is [Config.Linear] for a map whose inputs devices share, which keeps x in a codec.
func (c layers) rows(p params.Nodes, at string, x *graph.Node, codec string) *graph.Node {
	return c.biased(p, at, c.tensor.Rows(x, p.Get(at+".w"), c.product(codec)))
}

// shared returns the parameters, of which those at or below paths are in the form that layers use them in: what several
// devices have in common gets the sum of their gradients.
func (c layers) shared(g *graph.Graph, p params.Nodes, paths ...string) params.Nodes {
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
	var whole []*graph.Node
	for i, s := range tree {
		if cuts[i] == nil {
			names, whole = append(names, s.Name), append(whole, p.Get(s.Name))
		} else {
			p[s.Name] = c.tensor.SumCopies(p.Get(s.Name), cuts[i].Axis, cuts[i])
		}
	}
	for i, node := range c.tensor.Replicated(whole) {
		p[names[i]] = node
	}
	return p
}

// sharesTokens says whether devices share sequences.
func (c layers) sharesTokens() bool { return len(c.sequence.Axes()) > 0 }

// everyToken says whether the device has all tokens between layers.
func (c layers) everyToken() bool { return !c.sharesTokens() && !c.tensor.Sequence }

// positions are those of the device's tokens in layers, t of them: a vector of int32. Those of padding are Seq or more.
func (c layers) positions(g *graph.Graph, t int) *graph.Node {
	if c.sharesTokens() {
		return c.sequence.Positions(g, c.Seq)
	}
	return graph.Iota(g, shapes.Make(dtypes.Int32, t), 0)
}

// places are the positions of the device's tokens between layers, where within them it has t.
func (c layers) places(g *graph.Graph, t int) *graph.Node {
	return c.tensor.Tokens(c.positions(g, t), 0)
}

// longest is the most tokens that a device may have, padding included.
func (c layers) longest(g *graph.Graph) int {
	if c.sharesTokens() {
		return c.sequence.Local(g, c.Seq)
	}
	return c.Seq
}

// heads are how many query heads, and how many heads of keys and of values, a device has.
func (c layers) heads(g *graph.Graph) (queries, keys int) {
	n := c.tensor.Size(g)
	return c.Heads / n, max(1, c.kvHeads()/n)
}

// headPlaces are those of the device's key heads among all, and of its query heads among those of a key head: vectors
// of int32.
func (c layers) headPlaces(g *graph.Graph) (keys, queries *graph.Node) {
	rank, ranks := c.tensor.Rank(g), c.tensor.Size(g)
	ownQueries, ownKeys := c.heads(g)
	run := func(first *graph.Node, n int) *graph.Node {
		return graph.Add(graph.Iota(g, shapes.Make(dtypes.Int32, n), 0), first)
	}
	if sharing := ranks / c.kvHeads(); sharing > 1 { // so many devices share a key head
		within := graph.Mod(rank, graph.Const(g, int32(sharing)))
		return run(graph.Div(rank, graph.Const(g, int32(sharing))), 1), run(graph.MulScalar(within, ownQueries), ownQueries)
	}
	return run(graph.MulScalar(rank, ownKeys), ownKeys), run(graph.Const(g, int32(0)), ownQueries/ownKeys)
}

// local returns what the device has of the tokens (B,Seq).
func (c layers) local(tokens *graph.Node) *graph.Node {
	if !c.sharesTokens() {
		return tokens
	}
	if tokens.Rank() != 2 || tokens.Shape().Dim(1) != c.Seq {
		panic(fmt.Errorf("gpt: tokens have shape %s: a sequence that devices share has Config.Seq %d", tokens.Shape(), c.Seq))
	}
	return c.sequence.Take(tokens, 1)
}

// loss is the device's share of the mean [CrossEntropy] of its logits (B,T,V) and the targets (B,Seq): the mean over
// the devices that have other tokens of the same rows is the mean over all tokens.
func (c layers) loss(logits, targets *graph.Node) *graph.Node {
	each := c.tensor.CrossEntropy(logits, c.local(targets), c.Vocab) // (B,T)
	if !c.sharesTokens() {
		return graph.ReduceAllMean(each)
	}
	rows, local := each.Shape().Dim(0), each.Shape().Dim(1)
	g := logits.Graph()
	ranks := collective.AxisSize(g, c.sequence.Axes()...)
	if local*ranks > c.Seq { // some of it padding
		real := graph.ExpandAndBroadcast(c.sequence.Real(g, c.Seq), []int{rows, local}, []int{0})
		each = graph.Where(real, each, graph.ZerosLike(each))
	}
	return graph.MulScalar(graph.ReduceAllSum(each), float64(ranks)/float64(rows*c.Seq))
}
