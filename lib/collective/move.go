package collective

import (
	"fmt"
	"slices"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/xla"
)

// AllGather gives every rank all ranks' x, concatenated along an axis in the ranks' order:
//
//	x[a b] on each of N ranks → [N·a b], the same on each
//
// Its backward pass is ReduceScatter with Sum.
func AllGather(x *graph.Node, axis int, axes ...string) *graph.Node {
	axes, _ = along(x.Graph(), "AllGather", axes)
	axis = tensorAxis(x, "AllGather", axis)
	return xla.Collective{Kind: xla.AllGather, Axis: axis, Along: axes}.Apply(x)[0]
}

// AllToAll splits each rank's x along one axis, sends part p to rank p, and concatenates the received parts along
// another axis in the senders' order:
//
//	x[N·a b] on each of N ranks, split 0, concat 1 → [a N·b]
//
// The split axis must be a multiple of N. Its backward pass is AllToAll with split and concat exchanged. The mesh axis
// may be one of [Between] if split and concat are 0.
func AllToAll(x *graph.Node, split, concat int, axes ...string) *graph.Node {
	if n, ok := betweenAlone(x.Graph(), axes); ok && split == 0 && concat == 0 && x.Rank() > 0 {
		evenly(x, "AllToAll", 0, axes, n)
		return xla.Exchange{Kind: xla.AllToAll, Axis: axes[0]}.Of(x)
	}
	axes, n := along(x.Graph(), "AllToAll", axes)
	split, concat = tensorAxis(x, "AllToAll", split), tensorAxis(x, "AllToAll", concat)
	evenly(x, "AllToAll", split, axes, n)
	return xla.Collective{Kind: xla.AllToAll, Axis: split, Concat: concat, Along: axes}.Apply(x)[0]
}

// AllToAllV is an all-to-all of uneven parts. Each rank has g groups, such as experts, and counts has g numbers for
// each rank: the rows of x for its groups. The first counts[0]+…+counts[g-1] rows of x go to rank 0, the next to rank
// 1, and so on; the rest stays.
//
//	x[m b], counts[N·g] on each of N ranks → y[rows b], received[N·g]
//
// y has the rows received, those from rank 0 first, then zeros; received has each sender's counts for this rank's
// groups. If rows are too few, the program fails, but not on GPUs: see Rows of [xla.Collective]. The backward pass is
// AllToAllV with the received counts, and as many rows as x. The axis may be one of [Between].
func AllToAllV(x, counts *graph.Node, rows int, axes ...string) (y, received *graph.Node) {
	checkRows(x, counts, rows, axes)
	received = AllToAll(counts, 0, 0, axes...)
	return AllToAllVKnown(x, counts, received, rows, axes...), received
}

// AllToAllVKnown is [AllToAllV] where each rank knows what it receives. It takes rows back to where they came from,
// with the two counts exchanged.
func AllToAllVKnown(x, counts, received *graph.Node, rows int, axes ...string) *graph.Node {
	checkRows(x, counts, rows, axes)
	checkRows(x, received, rows, axes)
	if _, ok := betweenAlone(x.Graph(), axes); ok {
		return xla.Exchange{Kind: xla.AllToAllV, Axis: axes[0], Rows: rows}.Of(x, counts, received)
	}
	axes, _ = along(x.Graph(), "AllToAllV", axes)
	return xla.Collective{Kind: xla.AllToAllV, Rows: rows, Along: axes}.Apply(x, counts, received)[0]
}

func checkRows(x, counts *graph.Node, rows int, axes []string) {
	ranks, ok := betweenAlone(x.Graph(), axes)
	if !ok {
		_, ranks = along(x.Graph(), "AllToAllV", axes)
	}
	of := counts.Shape()
	switch {
	case x.Rank() == 0 || x.Shape().Size() == 0 || rows < 1:
		panic(fmt.Errorf("AllToAllV of %v to %d rows: give one row or more, of x and of the result", x.Shape(), rows))
	case of.DType != dtypes.Int32 || of.Rank() != 1 || of.Size() == 0 || of.Size()%ranks != 0:
		panic(fmt.Errorf("AllToAllV: counts are %v: give int32 [%d·g], g for each of %d ranks", of, ranks, ranks))
	}
}

// Permute sends x of rank r to rank to[r], or nowhere if to[r] is -1:
//
//	x[a b] on each of N ranks → [a b]: the received x, or zeros
//
// No two ranks may send to the same one. Its backward pass is the inverse permutation.
func Permute(x *graph.Node, to []int, axes ...string) *graph.Node {
	axes, n := along(x.Graph(), "Permute", axes)
	if len(to) != n {
		panic(fmt.Errorf("Permute: %d targets for %d ranks along %q: give one for each", len(to), n, axes))
	}
	from := back(to, n)
	for r, target := range to {
		if target < -1 || target >= n {
			panic(fmt.Errorf("Permute: rank %d sends to rank %d, want 0 to %d, or -1", r, target, n-1))
		}
		if target >= 0 && from[target] != r {
			panic(fmt.Errorf("Permute: ranks %d and %d both send to rank %d", r, from[target], target))
		}
	}
	if !slices.ContainsFunc(to, func(target int) bool { return target >= 0 }) {
		return graph.ZerosLike(x) // XLA rejects an empty permutation
	}
	return xla.Collective{Kind: xla.Permute, To: to, Along: axes}.Apply(x)[0]
}

// RingShift sends x of rank r to rank r+shift modulo N; shift may be negative:
//
//	x[a b] on each of N ranks → [a b]: x of rank r-shift on rank r
//
// Its backward pass is RingShift by -shift. The axis may be one of [Between].
func RingShift(x *graph.Node, shift int, axes ...string) *graph.Node {
	if _, ok := betweenAlone(x.Graph(), axes); ok {
		return xla.Exchange{Kind: xla.Permute, Axis: axes[0], By: shift}.Of(x)
	}
	axes, n := along(x.Graph(), "RingShift", axes)
	to := make([]int, n)
	for r := range to {
		to[r] = ((r+shift)%n + n) % n
	}
	return Permute(x, to, axes...)
}

// back returns the inverse of a permutation.
func back(to []int, n int) []int {
	from := make([]int, n)
	for r := range from {
		from[r] = -1
	}
	for r, target := range to {
		if target >= 0 && target < n {
			from[target] = r
		}
	}
	return from
}

// Broadcast gives every rank the root's x, bit for bit:
//
//	x[a b] on each of N ranks → [a b]: the root's x
//
// XLA has no broadcast on CPUs, so it is an all-reduce with zeros from the other ranks. Its backward pass sums all
// gradients on the root.
func Broadcast(x *graph.Node, root int, axes ...string) *graph.Node {
	axes, n := along(x.Graph(), "Broadcast", axes)
	checkRoot("Broadcast", root, n)
	return fromRoot(x, root, xla.Collective{Kind: xla.AllReduce, Along: axes})
}

// Gather gives the root all ranks' x, concatenated along an axis, and the others zeros:
//
//	x[a b] on each of N ranks → [N·a b]: all x on the root, zeros elsewhere
//
// It is an AllGather, with the same traffic, since one program has the same shapes on all devices. Its backward pass is
// Scatter.
func Gather(x *graph.Node, axis, root int, axes ...string) *graph.Node {
	axes, n := along(x.Graph(), "Gather", axes)
	checkRoot("Gather", root, n)
	all := AllGather(x, axis, axes...)
	return onRoot(all, graph.ZerosLike(all), root, axes)
}

// Scatter splits the root's x along an axis and gives each rank one part, bit for bit:
//
//	x[N·a b] on each of N ranks → [a b]: rows r·a to (r+1)·a of the root's x on rank r
//
// The axis must be a multiple of N. It is a reduce-scatter with zeros from the other ranks. Its backward pass is
// Gather.
func Scatter(x *graph.Node, axis, root int, axes ...string) *graph.Node {
	axes, n := along(x.Graph(), "Scatter", axes)
	checkRoot("Scatter", root, n)
	axis = tensorAxis(x, "Scatter", axis)
	evenly(x, "Scatter", axis, axes, n)
	return fromRoot(x, root, xla.Collective{Kind: xla.ReduceScatter, Axis: axis, Along: axes})
}

// fromRoot sums x of the root and zeros of the others as integers, which preserves all bits.
func fromRoot(x *graph.Node, root int, c xla.Collective) *graph.Node {
	c.Reduce, c.Bits = compute.ReduceOpSum, x.DType().IsFloat()
	of := x.DType()
	if of == dtypes.Bool {
		x = graph.ConvertDType(x, dtypes.Uint8)
	}
	return graph.ConvertDType(c.Apply(onRoot(x, graph.ZerosLike(x), root, c.Along))[0], of)
}
