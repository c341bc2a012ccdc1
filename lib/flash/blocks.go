package flash

import (
	"cmp"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/xla"
)

// Block is the size of a block of the engine [Blocks], in tokens. The defaults are 256 keys, and 256·K/H queries: with
// grouped-query attention the queries of a group form one matrix.
type Block struct{ Queries, Keys int }

// blocks is a call cut into blocks. Its loops slice the operands and update the results in place, so that besides these
// only a few blocks are in memory, and for half types the gradient of the queries, which accumulates in float32.
//
// In a block the queries of the heads of one key head are the rows of one matrix: (B,K,R,D) with R = queries·H/K.
type blocks struct {
	call
	group  int // query heads of a key head
	qs, ks side
}

func (c call) blocks() blocks {
	b := blocks{call: c, group: c.heads() / c.keyHeads()}
	size := c.Block
	if size.Queries == 0 {
		size.Queries = max(1, 256/b.group)
	}
	if size.Keys == 0 {
		size.Keys = 256
	}
	b.qs = newSide(newSpan(c.queries(), size.Queries), c.QueryPositions, c.QuerySegments, c.q.Graph(),
		c.keys()-c.queries())
	b.ks = newSide(newSpan(c.keys(), size.Keys), c.KeyPositions, c.KeySegments, c.q.Graph(), 0)
	return b
}

// rows returns a block of queries of x (B,T,H,X) as (B,K,R,X).
func (b blocks) rows(x, i *graph.Node) *graph.Node {
	x = part(x, b.qs.start(i), b.qs.block)
	x = graph.Reshape(x, b.batch(), b.qs.block, b.keyHeads(), b.group, x.Shape().Dim(3))
	x = graph.Reshape(graph.TransposeAllAxes(x, 0, 2, 1, 3, 4), b.batch(), b.keyHeads(), b.qs.block*b.group,
		x.Shape().Dim(4))
	return graph.ConvertDType(x, b.statistics())
}

// stats returns a block of queries of x (B,T,H) as (B,K,R,1).
func (b blocks) stats(x, i *graph.Node) *graph.Node { return b.rows(graph.InsertAxes(x, -1), i) }

// queriesOf returns rows (B,K,R,X) as a block of queries (B,T,H,X).
func (b blocks) queriesOf(rows *graph.Node) *graph.Node {
	d := rows.Shape().Dim(3)
	x := graph.Reshape(rows, b.batch(), b.keyHeads(), b.qs.block, b.group, d)
	return graph.Reshape(graph.TransposeAllAxes(x, 0, 2, 1, 3, 4), b.batch(), b.qs.block, b.heads(), d)
}

// columns returns a block of keys of x (B,S,K,X) as (B,K,S,X).
func (b blocks) columns(x, j *graph.Node) *graph.Node {
	return graph.ConvertDType(swapped(part(x, b.ks.start(j), b.ks.block)), b.statistics())
}

func swapped(x *graph.Node) *graph.Node { return graph.TransposeAllAxes(x, 0, 2, 1, 3) }

// scores returns the scores (B,K,R,S) of rows (B,K,R,D) of block i with the keys (B,K,S,D) of block j: −∞ where a row
// does not see a key, or where the key belongs to the block before.
func (b blocks) scores(q, k, i, j *graph.Node) *graph.Node {
	s := graph.MulScalar(graph.Einsum("bkrd,bksd->bkrs", q, k), b.Scale)
	asKeys := func(x *graph.Node) *graph.Node { return graph.Reshape(x, x.Shape().Dim(0), 1, 1, b.ks.block) }
	seen := both(b.meet(b.qs.tokens(i, b.asRows), b.ks.tokens(j, asKeys)), b.ks.fresh(j, asKeys))
	if seen == nil {
		return s
	}
	return graph.Where(graph.BroadcastToDims(seen, s.Shape().Dimensions...), s, negInf(s))
}

// asRows reshapes x (1 or B, queries) of a block to (1 or B,1,R,1).
func (b blocks) asRows(x *graph.Node) *graph.Node {
	n := x.Shape().Dim(0)
	x = graph.BroadcastToDims(graph.InsertAxes(x, -1), n, b.qs.block, b.group)
	return graph.Reshape(x, n, 1, b.qs.block*b.group, 1)
}

// count runs body for i in [first, end), with the state that it returns.
func count(first, end *graph.Node, state []*graph.Node, body func(i *graph.Node,
	state []*graph.Node) []*graph.Node) []*graph.Node {
	return xla.While(append([]*graph.Node{first}, state...), func(s []*graph.Node) *graph.Node {
		return graph.LessThan(s[0], end)
	}, func(s []*graph.Node) []*graph.Node {
		return append([]*graph.Node{graph.AddScalar(s[0], 1)}, body(s[0], s[1:])...)
	})[1:]
}

// over runs count over all blocks of a side. GoMLX does not see which outside nodes a loop's body uses, so the call's
// inputs are also passed through the loop's state, unchanged, to show that the results depend on them.
func (b blocks) over(s side, state []*graph.Node, body func(i *graph.Node,
	state []*graph.Node) []*graph.Node) []*graph.Node {
	n := len(state)
	return count(integer(b.q, 0), integer(b.q, s.count), append(state, b.inputs()...),
		func(i *graph.Node, state []*graph.Node) []*graph.Node {
			return append(body(i, state[:n:n]), state[n:]...)
		})[:n]
}

// blocksForward is FlashAttention's forward pass (Dao 2023, Algorithm 1): for each block of queries, online softmax
// over the blocks of keys that it sees.
func (c call) blocksForward(of dtypes.DType) (out, m, d *graph.Node) {
	b := c.blocks()
	g, stat := c.q.Graph(), c.statistics()
	seen := b.seenBy(1) // by queries
	all := []*graph.Node{graph.Zeros(g, c.outShape(of)), graph.Zeros(g, c.statShape()), graph.Zeros(g, c.statShape())}
	all = b.over(b.qs, all, func(i *graph.Node, all []*graph.Node) []*graph.Node {
		g := i.Graph()
		q := b.rows(c.q, i)
		r := q.Shape().Dim(2)
		one := shapes.Make(stat, c.batch(), c.keyHeads(), r, 1)
		begin := []*graph.Node{negInf(graph.Zeros(g, one)), graph.Zeros(g, one),
			graph.Zeros(g, shapes.Make(stat, c.batch(), c.keyHeads(), r, c.e()))}
		first, end := seen.of(i)
		s := count(first, end, begin, func(j *graph.Node, s []*graph.Node) []*graph.Node {
			m, d, o := s[0], s[1], s[2]
			scores := b.scores(q, b.columns(c.k, j), i, j)
			now := graph.Max(m, graph.ReduceAndKeep(scores, graph.ReduceMax, -1))
			base := graph.Where(graph.Equal(now, negInf(now)), graph.ZerosLike(now), now) // −∞ less −∞ would be NaN
			weights := graph.Exp(graph.Sub(scores, base))
			shrink := graph.Exp(graph.Sub(m, base))
			return []*graph.Node{now,
				graph.Add(graph.Mul(d, shrink), graph.ReduceAndKeep(weights, graph.ReduceSum, -1)),
				graph.Add(graph.Mul(o, shrink), graph.Einsum("bkrs,bkse->bkre", weights, b.columns(c.v, j)))}
		})
		m, d, o := s[0], s[1], s[2]
		o = graph.Div(o, graph.Where(graph.GreaterThan(d, graph.ZerosLike(d)), d, graph.OnesLike(d)))
		at := b.qs.start(i)
		without := func(x *graph.Node) *graph.Node { return graph.Squeeze(b.queriesOf(x), -1) }
		return []*graph.Node{put(all[0], b.queriesOf(o), at), put(all[1], without(m), at), put(all[2], without(d), at)}
	})
	return all[0], all[1], all[2]
}

// blocksBackward is FlashAttention's backward pass (Dao 2023, Algorithm 2): for each block of keys, it loops over the
// blocks of queries that see it and recomputes their weights.
func (c call) blocksBackward(out, m, d, dOut *graph.Node) (dq, dk, dv *graph.Node) {
	b := c.blocks()
	g, stat := c.q.Graph(), c.statistics()
	seeing := b.seenBy(0) // of keys
	as := func(x *graph.Node) *graph.Node { return graph.ConvertDType(x, stat) }
	delta := graph.ReduceSum(graph.Mul(as(out), as(dOut)), -1) // (B,T,H)
	// For a query that sees no key, m = ∞ gives weights of e^(−∞) = 0.
	none := graph.Equal(d, graph.ZerosLike(d))
	m, d = graph.Where(none, graph.Neg(negInf(m)), m), graph.Where(none, graph.OnesLike(d), d)
	all := []*graph.Node{graph.Zeros(g, shapes.Make(stat, c.q.Shape().Dimensions...)), graph.ZerosLike(c.k),
		graph.ZerosLike(c.v)}
	all = b.over(b.ks, all, func(j *graph.Node, all []*graph.Node) []*graph.Node {
		k, v := b.columns(c.k, j), b.columns(c.v, j)
		first, end := seeing.of(j)
		begin := []*graph.Node{all[0], graph.ZerosLike(k), graph.ZerosLike(v)}
		s := count(first, end, begin, func(i *graph.Node, s []*graph.Node) []*graph.Node {
			q, dOut := b.rows(c.q, i), b.rows(dOut, i)
			weights := graph.Div(graph.Exp(graph.Sub(b.scores(q, k, i, j), b.stats(m, i))), b.stats(d, i))
			if fresh := b.qs.fresh(i, b.asRows); fresh != nil {
				weights = graph.Where(graph.BroadcastToDims(fresh, weights.Shape().Dimensions...), weights,
					graph.ZerosLike(weights))
			}
			dWeights := graph.Einsum("bkre,bkse->bkrs", dOut, v)
			dScores := graph.MulScalar(graph.Mul(weights, graph.Sub(dWeights, b.stats(delta, i))), c.Scale)
			at := b.qs.start(i)
			dq := graph.Add(part(s[0], at, b.qs.block), b.queriesOf(graph.Einsum("bkrs,bksd->bkrd", dScores, k)))
			return []*graph.Node{put(s[0], dq, at), graph.Add(s[1], graph.Einsum("bkrs,bkrd->bksd", dScores, q)),
				graph.Add(s[2], graph.Einsum("bkrs,bkre->bkse", weights, dOut))}
		})
		at := b.ks.start(j)
		more := func(x, block *graph.Node) *graph.Node {
			return put(x, graph.Add(as(part(x, at, b.ks.block)), swapped(block)), at)
		}
		return []*graph.Node{s[0], more(all[1], s[1]), more(all[2], s[2])}
	})
	return graph.ConvertDType(all[0], c.q.DType()), all[1], all[2]
}

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

// seenBy returns which blocks of keys each block of queries sees (axis 1), or which blocks of queries see each block of
// keys (axis 0).
func (b blocks) seenBy(axis int) sight {
	g, of := b.q.Graph(), shapes.Make(dtypes.Int32, b.qs.count, b.ks.count)
	n := graph.Const(g, int32(of.Dim(axis)))
	zero := graph.Const(g, int32(0))
	seen := b.meet(b.qs.blocks(b.qs.count, 1), b.ks.blocks(1, b.ks.count))
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

// span is an axis cut into blocks of equal size. If that does not divide the axis, the last block overlaps the one
// before, and the overlap must not count twice.
type span struct{ length, block, count int }

func newSpan(length, size int) span {
	size = min(size, length)
	count := (length + size - 1) / size
	return span{length, (length + count - 1) / count, count}
}

func (s span) divides() bool { return s.count*s.block == s.length }

// start returns the first index of block i.
func (s span) start(i *graph.Node) *graph.Node {
	return graph.Min(graph.MulScalar(i, s.block), integer(i, s.length-s.block))
}

// indices returns the indices of each block, (count, block).
func (s span) indices() [][]int32 {
	all := make([][]int32, s.count)
	for i := range all {
		all[i] = make([]int32, s.block)
		for j := range all[i] {
			all[i][j] = int32(min(i*s.block, s.length-s.block) + j)
		}
	}
	return all
}

// part returns a block of axis 1 of x.
func part(x, start *graph.Node, length int) *graph.Node {
	sizes := x.Shape().Clone().Dimensions
	sizes[1] = length
	return graph.DynamicSlice(x, startsAt(x, start), sizes)
}

// put returns x with a block of axis 1 replaced.
func put(x, block, start *graph.Node) *graph.Node {
	return graph.DynamicUpdateSlice(x, graph.ConvertDType(block, x.DType()), startsAt(x, start))
}

func startsAt(x, start *graph.Node) []*graph.Node {
	starts := make([]*graph.Node, x.Rank())
	for i := range starts {
		starts[i] = integer(start, 0)
	}
	starts[1] = start
	return starts
}

func integer(like *graph.Node, i int) *graph.Node { return graph.Const(like.Graph(), int32(i)) }
