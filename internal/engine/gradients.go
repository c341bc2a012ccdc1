package engine

import (
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/step"
)

// sum is the accumulated gradients of a unit: a matrix from outside the segment, and what the segment adds, by
// parameter.
type sum struct {
	matrix *graph.Node
	added  map[int]*graph.Node
}

func (b *build) sumOf(x slot) *sum {
	if b.sums[x] == nil {
		b.sums[x] = &sum{added: map[int]*graph.Node{}}
	}
	return b.sums[x]
}

// plus adds b to a, which may be nil.
func plus(a, b *graph.Node) *graph.Node {
	if a == nil || b == nil {
		return b
	}
	return graph.Add(a, b)
}

// part returns a parameter's accumulated gradient.
func (b *build) part(x slot, at int) *graph.Node {
	s := b.sumOf(x)
	added := s.added[at]
	switch {
	case b.idle[at] || s.matrix == nil && added == nil: // no gradient: the loss does not depend on it
		return graph.Zeros(b.g, shapes.Make(b.policy.Reduce, b.tree[at].Shape.Dimensions...))
	case s.matrix == nil:
		return added
	case added == nil:
		return b.view(s.matrix, at)
	}
	return b.addedTo(b.view(s.matrix, at), at, added)
}

// joined returns the matrix of a unit's accumulated gradients.
func (b *build) joined(x slot) *graph.Node {
	var all []*graph.Node
	for _, at := range b.units[x.number].members {
		all = append(all, b.columns(at, b.part(x, at)))
	}
	return concatenate(all, 1)
}

// addedTo accumulates a parameter's gradient, unless it is the first.
func (b *build) addedTo(before *graph.Node, at int, fresh *graph.Node) *graph.Node {
	if slices.Contains(b.io.begins, at) {
		return fresh
	}
	return graph.Add(before, fresh)
}

// matrix returns a unit's accumulated gradients as they are passed between segments. The columns of parameters are an
// argument of the program, so blocks of one kind share it.
func (b *build) matrix(x slot) *graph.Node {
	s, u := b.sums[x], b.units[x.number]
	if s.matrix == nil {
		return b.joined(x)
	}
	if s.matrix.Rank() == 1 { // a shard
		return s.matrix
	}
	matrix := s.matrix
	for k, at := range b.io.touched {
		if s.added[at] == nil || b.unitOf[at] != u {
			continue
		}
		fresh := b.columns(at, s.added[at])
		offset := graph.Squeeze(graph.Slice(b.number(touchedSlot, 0), graph.AxisElem(k)))
		place := []*graph.Node{graph.Const(b.g, int32(0)), offset}
		before := graph.DynamicSlice(matrix, place, fresh.Shape().Dimensions)
		matrix = graph.DynamicUpdateSlice(matrix, b.addedTo(before, at, fresh), place)
	}
	return matrix
}

// reduce reduces a unit's gradients over the rank's devices: an all-reduce, or a reduce-scatter.
func (b *build) reduce(op step.Op) {
	from, to := slot{kind: sumSlot, number: op.Unit}, slot{kind: reducedSlot, number: op.Unit}
	u, axes := b.units[op.Unit], axisNames(op.Axis)
	if u.size == 0 {
		return // the loss depends on none of its parameters
	}
	if u.Reduce[0] != op.Axis {
		from = to
	}
	if op.Axis == u.Shard {
		shard := collective.ReduceScatter(b.joined(from), collective.Sum, 0, axes...)
		s := b.sumOf(to)
		s.matrix = plus(s.matrix, graph.Reshape(shard, u.size))
		delete(b.sums, from)
		return
	}
	var all []*graph.Node
	for _, at := range u.members {
		all = append(all, b.part(from, at))
	}
	all = collective.AllReduceEach(all, collective.Sum, axes...)
	delete(b.sums, from)
	s := b.sumOf(to)
	for i, at := range u.members {
		s.added[at] = plus(s.added[at], all[i])
	}
}

// wait makes the next pass wait for an operation's result.
func (b *build) wait(op step.Op) {
	switch op.Of {
	case step.Gather:
		b.hold = append(b.hold, b.has[b.slotOf(step.Value{Held: step.Full, Unit: op.Unit})]...)
	case step.Reduce:
		s := b.sums[slot{kind: reducedSlot, number: op.Unit}]
		if s == nil {
			return
		}
		b.hold = append(b.hold, s.matrix)
		for _, at := range b.units[op.Unit].members {
			b.hold = append(b.hold, s.added[at])
		}
	}
}

func concatenate(all []*graph.Node, axis int) *graph.Node {
	if len(all) == 1 {
		return all[0]
	}
	return graph.Concatenate(all, axis)
}

// summed returns a parameter's gradient, summed over all micro-batches and ranks, or the rank's shard of it.
func (b *build) summed(at int) *graph.Node {
	u := b.unitOf[at]
	x := slot{kind: reducedSlot, number: u.number}
	if len(u.Reduce) == 0 {
		x.kind = sumSlot
	}
	if s := b.sums[x]; s != nil && s.matrix != nil && s.matrix.Rank() == 1 {
		return b.cut(s.matrix, at)
	}
	if b.flat { // updates on the host without shards
		return graph.Reshape(b.columns(at, b.part(x, at)), b.length(at))
	}
	return b.part(x, at)
}

// scaled returns x, of any floating-point type, times a float32 scalar. Means are sums times 1/n: compilers turn a
// quotient into a division or a multiplication, and programs would differ in bits.
func scaled(x, factor *graph.Node) *graph.Node {
	return graph.ConvertDType(graph.Mul(graph.ConvertDType(x, dtypes.Float32), factor), x.DType())
}
