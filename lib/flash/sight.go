package flash

import (
	"cmp"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
)

// extent is the range of positions and segments of each token, or of each block of tokens. For a token, least and
// greatest are the same.
type extent struct {
	least, greatest               *graph.Node
	leastSegment, greatestSegment *graph.Node // nil if all are in one segment
}

// meet returns which queries see which keys: exactly for tokens, and for blocks whether their ranges allow it. The
// extents' shapes broadcast. nil means that every query sees every key.
func (m Mask) meet(q, k extent) (seen *graph.Node) {
	if m.everything() {
		return nil
	}
	if m.Causal {
		seen = both(seen, graph.GreaterOrEqual(q.greatest, k.least))
	}
	if m.Window > 0 { // the distance of two positions may need 33 bits
		distance := func(a, b *graph.Node) *graph.Node {
			return graph.Sub(graph.ConvertDType(a, dtypes.Int64), graph.ConvertDType(b, dtypes.Int64))
		}
		window := graph.Const(q.least.Graph(), int64(m.Window))
		seen = both(seen, graph.LessThan(distance(q.least, k.greatest), window))
		seen = both(seen, graph.LessThan(distance(k.least, q.greatest), window))
	}
	if q.leastSegment != nil {
		seen = both(seen, graph.GreaterOrEqual(q.greatestSegment, k.leastSegment))
		seen = both(seen, graph.GreaterOrEqual(k.greatestSegment, q.leastSegment))
	}
	return seen
}

// both returns a AND b; nil is always true.
func both(a, b *graph.Node) *graph.Node {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	return graph.LogicalAnd(a, b)
}

// side is the queries or the keys of a call.
type side struct {
	span
	positions *graph.Node // (1,T)
	segments  *graph.Node // (B,T), or nil
}

// newSide returns a side with the given positions, or with first, first+1, … if they are nil.
func newSide(s span, positions, segments *graph.Node, g *graph.Graph, first int) side {
	if positions == nil {
		positions = graph.AddScalar(graph.Iota(g, shapes.Make(dtypes.Int32, s.length), 0), first)
	}
	return side{s, graph.Reshape(positions, 1, s.length), segments}
}

// tokens returns the extents of the tokens of block i, reshaped by of from (1 or B, block).
func (s side) tokens(i *graph.Node, of func(x *graph.Node) *graph.Node) extent {
	position := of(part(s.positions, s.start(i), s.block))
	if s.segments == nil {
		return extent{least: position, greatest: position}
	}
	segment := of(part(s.segments, s.start(i), s.block))
	return extent{position, position, segment, segment}
}

// fresh returns which tokens of block i are not in the block before, reshaped by of. nil means all.
func (s side) fresh(i *graph.Node, of func(x *graph.Node) *graph.Node) *graph.Node {
	if s.divides() {
		return nil
	}
	tokens := graph.Add(graph.Iota(i.Graph(), shapes.Make(dtypes.Int32, 1, s.block), 1), s.start(i))
	return of(graph.GreaterOrEqual(tokens, graph.MulScalar(i, s.block)))
}

// blocks returns the extents of all blocks over the full batch, in shape dims.
func (s side) blocks(dims ...int) extent {
	over := func(x *graph.Node, reduce func(*graph.Node, ...int) *graph.Node) *graph.Node {
		indices := graph.InsertAxes(graph.Const(x.Graph(), s.indices()), -1)
		each := graph.Gather(graph.TransposeAllAxes(x, 1, 0), indices) // (count, block, B or 1)
		return graph.Reshape(reduce(each, 1, 2), dims...)
	}
	e := extent{least: over(s.positions, graph.ReduceMin), greatest: over(s.positions, graph.ReduceMax)}
	if s.segments != nil {
		e.leastSegment, e.greatestSegment = over(s.segments, graph.ReduceMin), over(s.segments, graph.ReduceMax)
	}
	return e
}

// sight is the range of blocks, from first[i] to before end[i], that block i has to visit. Blocks within the range that
// it does not see cost only time.
type sight struct{ first, end *graph.Node }

// keysSeen returns which blocks of keys each block of queries sees.
func (m Mask) keysSeen(q, k side) sight { return m.seenBy(q, k, 1) }

// queriesSeeing returns which blocks of queries see each block of keys.
func (m Mask) queriesSeeing(q, k side) sight { return m.seenBy(q, k, 0) }

func (m Mask) seenBy(q, k side, axis int) sight {
	g, of := q.positions.Graph(), shapes.Make(dtypes.Int32, q.count, k.count)
	n := graph.Const(g, int32(of.Dim(axis)))
	zero := graph.Const(g, int32(0))
	seen := m.meet(q.blocks(q.count, 1), k.blocks(1, k.count))
	if seen == nil {
		all := shapes.Make(dtypes.Int32, of.Dim(1-axis))
		return sight{graph.Zeros(g, all), graph.BroadcastToShape(n, all)}
	}
	at := graph.Iota(g, of, axis)
	wide := func(x *graph.Node) *graph.Node { return graph.BroadcastToShape(x, of) }
	return sight{
		first: graph.ReduceMin(graph.Where(seen, at, wide(n)), axis),
		end:   graph.ReduceMax(graph.Where(seen, graph.AddScalar(at, 1), wide(zero)), axis),
	}
}

// of returns the bounds for block i.
func (s sight) of(i *graph.Node) (first, end *graph.Node) {
	at := func(x *graph.Node) *graph.Node {
		return graph.Reshape(graph.DynamicSlice(x, []*graph.Node{i}, []int{1}))
	}
	return at(s.first), at(s.end)
}
