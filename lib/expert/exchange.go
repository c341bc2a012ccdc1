package expert

import (
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/autodiff"
	"github.com/shardbook/shardbook/lib/collective"
)

// elsewhere has the devices of the experts apply of to rows (M,C) of all experts, sorted by these, with counts (E). At
// most arrive rows come to a device. There they are sorted by its experts, with counts (E/N).
func (l Layer) elsewhere(rows, counts *graph.Node, arrive int,
	of func(rows, counts *graph.Node) *graph.Node) *graph.Node {
	n := size(rows.Graph(), l.Axes)
	if n == 1 {
		return of(rows, counts)
	}
	y, received := collective.AllToAllV(rows, counts, arrive, l.Axes...)
	by := regroup(received, n, arrive)
	y = by.back(of(by.sorted(y), graph.ReduceSum(graph.Reshape(received, n, -1), 0)))
	return collective.AllToAllVKnown(y, received, counts, rows.Shape().Dim(0), l.Axes...)
}

// arrivals is the most rows that may come to one of n devices, for tokens (B,T,…).
func (l Layer) arrivals(x *graph.Node, n int) int {
	sequences, length, experts := x.Shape().Dim(0), x.Shape().Dim(1), l.Experts/n
	tokens, _ := l.length(x)
	return n * sequences * min(length*min(l.PerToken, experts), experts*min(length, l.capacity(tokens)))
}

// everywhere returns x of all n devices that have tokens of the same sequences, in the order of their ranks, (n,…).
func (l Layer) everywhere(x *graph.Node) *graph.Node {
	x = graph.InsertAxes(x, 0)
	if len(l.Sequence) == 1 && collective.IsBetween(x.Graph(), l.Sequence[0]) {
		dims := x.Shape().Clone().Dimensions
		dims[0] = size(x.Graph(), l.Sequence)
		return collective.AllToAll(graph.BroadcastToDims(x, dims...), 0, 0, l.Sequence...)
	}
	return collective.AllGather(x, 0, l.Sequence...)
}

// regrouped is two orders of the same rows: by sender and in these by expert, as they are received, and by expert and
// in these by sender.
type regrouped struct{ sender, expert *graph.Node } // int32: a row in the other order for each row in this one

// regroup returns the orders of a number of rows. received has the counts of n senders for each expert.
func regroup(received *graph.Node, n, rows int) regrouped {
	bySender := graph.Reshape(received, n, -1)
	byExpert := graph.Transpose(bySender, 0, 1)
	starts := func(counts *graph.Node) *graph.Node { // where each part begins, with these in order
		flat := graph.Reshape(counts, -1)
		return graph.Reshape(graph.Sub(graph.CumSum(flat, 0), flat), counts.Shape().Dimensions...)
	}
	moves := graph.Sub(graph.Transpose(starts(byExpert), 0, 1), starts(bySender)) // of (sender, expert)
	// A row moves as far as the part that it is in; rows after all parts stay.
	moved := func(counts, moves *graph.Node) *graph.Node {
		parts := counts.Shape().Size()
		flat := func(x *graph.Node) *graph.Node {
			return graph.BroadcastToDims(graph.Reshape(x, parts, 1), parts, rows)
		}
		row := graph.Iota(received.Graph(), shapes.Make(dtypes.Int32, parts, rows), 1)
		first := flat(starts(counts))
		in := graph.LogicalAnd(graph.GreaterOrEqual(row, first), graph.LessThan(row, graph.Add(first, flat(counts))))
		by := graph.ReduceSum(graph.Where(in, flat(moves), graph.ZerosLike(row)), 0)
		return graph.Add(graph.Iota(received.Graph(), shapes.Make(dtypes.Int32, rows), 0), by)
	}
	return regrouped{moved(bySender, moves), moved(byExpert, graph.Neg(graph.Transpose(moves, 0, 1)))}
}

// sorted returns received rows (rows,C) by expert.
func (r regrouped) sorted(rows *graph.Node) *graph.Node { return permute(rows, r.expert, r.sender) }

// back returns rows by expert as they were received.
func (r regrouped) back(rows *graph.Node) *graph.Node { return permute(rows, r.sender, r.expert) }

// permute returns row from[i] of x for each i. Its gradient gathers too, by the inverse permutation to.
func permute(x, from, to *graph.Node) *graph.Node {
	return autodiff.Custom([]*graph.Node{x, from, to},
		func(in []*graph.Node) []*graph.Node { return []*graph.Node{gather(in[0], in[1])} },
		func(in, _, v []*graph.Node) []*graph.Node { return []*graph.Node{gather(v[0], in[2]), nil, nil} })[0]
}
