package tensor

import (
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/precision"
)

// Embed looks up token embeddings in a table that is sharded by rows with [Padded]: the device has the shard table
// (⌈V/n⌉,C). The tokens (B,T), of any integer type, are the same on each device. The result is (B,T,C) in the table's
// type; with Sequence it is the device's tokens (B,T/n,C).
//
// Each device looks up the tokens of its shard and has zeros for the others; one all-reduce, or reduce-scatter, sums
// over the devices, which is exact (Shoeybi et al., §3). The gradients of a row accumulate in float32 (float64 for
// float64). A token outside the vocabulary gives zeros, but on one device the nearest row, as GoMLX's Gather does.
func (t Group) Embed(table, tokens *graph.Node) *graph.Node {
	check(table.Rank() == 2 && tokens.Rank() == 2 && tokens.DType().IsInt(),
		"Embed: a table %s and tokens %s: want (V/n,C) and integers (B,T)", table.Shape(), tokens.Shape())
	if t.Size(table.Graph()) == 1 {
		return graph.ConvertDType(graph.Gather(precision.Widen(table), graph.ExpandAxes(tokens, -1)), table.DType())
	}
	rows := table.Shape().Dim(0)
	place := graph.Sub(in64(tokens), t.start(table.Graph(), rows)) // row in the shard
	here := within(place, rows)
	// (B,T,C)
	found := graph.Gather(precision.Widen(table), graph.ExpandAxes(graph.Where(here, place, graph.ZerosLike(place)),
		-1))
	found = graph.Where(broadcastLeft(here, found), found, graph.ZerosLike(found))
	return t.Leave(graph.ConvertDType(found, table.DType()))
}

// CrossEntropy returns the loss −log softmax(logits)[target] of each position, in nats, with the shape of targets
// (B,T). It is in float32 for half-precision logits, else in their type, and the same on each device. The logits
// (B,T,⌈V/n⌉) are sharded by vocabulary with [Padded]; the padding is ignored. Targets have any integer type; one
// outside the vocabulary has loss and gradient 0.
//
// No device ever has all logits. Two all-reduces send three numbers for each position: the largest logit m, then the
// sum of e^(logit−m) and the target's logit−m (Shoeybi et al., §3). The backward pass needs no communication.
func (t Group) CrossEntropy(logits, targets *graph.Node, vocab int) *graph.Node {
	g := logits.Graph()
	n, columns := t.Size(g), logits.Shape().Dim(-1)
	check(logits.Rank() > 1 && slices.Equal(logits.Shape().Dimensions[:logits.Rank()-1], targets.Shape().Dimensions),
		"CrossEntropy: logits have shape %s and targets %s: want (B,T,V/n) and (B,T)", logits.Shape(), targets.Shape())
	check(columns == (vocab+n-1)/n, "CrossEntropy: %d columns of logits on each of %d devices for a "+
		"vocabulary of %d: want %d", columns, n, vocab, (vocab+n-1)/n)
	logits = precision.Widen(logits)
	if n == 1 {
		hit := graph.OneHot(targets, columns, logits.DType())
		return graph.Neg(graph.ReduceSum(graph.Mul(hit, graph.LogSoftmax(logits, -1)), -1))
	}

	start := t.start(g, columns)
	column := graph.Iota(g, shapes.Make(dtypes.Int64, logits.Shape().Dimensions...), -1)
	if n*columns > vocab {
		padding := graph.GreaterOrEqual(graph.Add(column, start), graph.Const(g, int64(vocab)))
		logits = graph.Where(padding, graph.BroadcastToShape(graph.Infinity(g, logits.DType(), -1), logits.Shape()),
			logits)
	}
	targets = in64(targets)
	known := within(targets, vocab)
	place := graph.Where(known, graph.Sub(targets, start), graph.Neg(graph.OnesLike(targets)))
	hit := graph.Equal(column, graph.ExpandAxes(place, -1))

	largest := collective.AllReduce(graph.ReduceMax(graph.StopGradient(logits), -1), collective.Max, t.Axis)
	logits = graph.Sub(logits, graph.ExpandAxes(graph.StopGradient(largest), -1))
	sum := graph.ReduceSum(graph.Exp(logits), -1)
	target := graph.ReduceSum(graph.Where(hit, logits, graph.ZerosLike(logits)), -1)
	both := collective.G(graph.Stack([]*graph.Node{sum, target}, 0), t.Axis)
	at := func(i int) *graph.Node { return graph.Squeeze(graph.Slice(both, graph.AxisElem(i)), 0) }
	loss := graph.Sub(graph.Log(at(0)), at(1))
	return graph.Where(known, loss, graph.ZerosLike(loss))
}

// start returns the device's first index, an int64 scalar, with that many indices on each device.
func (t Group) start(g *graph.Graph, each int) *graph.Node {
	return graph.MulScalar(in64(t.Rank(g)), each)
}

// within returns which of x are from 0 to size−1.
func within(x *graph.Node, size int) *graph.Node {
	g := x.Graph()
	return graph.LogicalAnd(graph.GreaterOrEqual(x, graph.Const(g, int64(0))),
		graph.LessThan(x, graph.Const(g, int64(size))))
}

func in64(x *graph.Node) *graph.Node { return graph.ConvertDType(x, dtypes.Int64) }
