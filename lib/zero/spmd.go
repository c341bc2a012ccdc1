package zero

import (
	"fmt"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
)

// Replicas is the axis of a mesh whose devices hold copies of what the devices along train.Axis share, for hybrid sharding.
const Replicas = "replica"

// inOne is one step as each device sees it.
type inOne struct {
	layout
	options Options
	recipe  train.Recipe
	model   chain.Model
	passes  chain.Passes
	policy  precision.Policy
	axes    []string // over which batches are split, the major one first
	world   int      // devices
}

// heldBy is what a device keeps between steps: arrays, or nodes of a graph, or where they lie.
type heldBy[T any] struct {
	weights []T // by unit, in the type to compute in: whole, one row for each rank, or in stage 3 the shard
	masters []T // by unit: the shard in the type that parameters are kept in, in mixed precision
	rest    []T // of the state
}

// all lists it in order, and split undoes it.
func (h heldBy[T]) all() []T { return slices.Concat(h.weights, h.masters, h.rest) }

func split[T any](of []T, units int, mixed bool) (h heldBy[T]) {
	h.weights, of = of[:units:units], of[units:]
	if mixed {
		h.masters, of = of[:units:units], of[units:]
	}
	h.rest = of
	return h
}

// graph builds a step from what is held and the device's rows of the inputs and the targets. It returns what is held after it,
// and the metrics.
func (s *inOne) graph(in []*graph.Node) []*graph.Node {
	n := len(in) - 2
	held, inputs, targets := split(in[:n], len(s.units), s.policy.Mixed()), in[n], in[n+1]
	g := inputs.Graph()
	_, scaling, counters := train.Tail(s.recipe, held.rest)

	rows := inputs.Shape().Dim(0)
	micro := s.options.Accumulate
	if rows%micro != 0 {
		panic(fmt.Errorf("zero: a batch with %d rows for each device is not divisible into %d micro-batches: make it a multiple", rows, micro))
	}
	rows /= micro
	first := graph.MulScalar(collective.Rank(g, s.axes...), rows*micro)
	var loss *graph.Node
	grads := make([]*graph.Node, len(s.units)) // whole in stage 1, else shards
	for m := range micro {
		p := pass{inOne: s, weights: held.weights, scaling: scaling}
		part := graph.AxisRange(m*rows, (m+1)*rows)
		p.inputs, p.targets = graph.Slice(inputs, part), graph.Slice(targets, part)
		p.key, p.row = s.recipe.Key(counters[0]), graph.ConvertDType(graph.AddScalar(first, m*rows), dtypes.Uint32)
		if m > 0 { // one after another: they would all hold their activations at once
			p.inputs = graph.SchedulingBarrier(p.inputs, loss)
		}
		p.run()
		loss, grads = plus(loss, p.loss), plusEach(grads, p.grads)
	}
	factor := graph.Const(g, float32(1/float64(s.world*micro)))
	loss = graph.Mul(collective.AllReduce(loss, collective.Sum, s.axes...), factor)
	if s.options.Stage == 1 {
		for i := range grads {
			grads[i] = s.scatter(grads[i])
		}
	}
	if len(s.axes) > 1 {
		grads = collective.AllReduceEach(grads, collective.Sum, Replicas)
	}

	kept := held.masters
	if !s.policy.Mixed() {
		kept = held.weights
		if s.options.Stage < 3 { // the rank's row
			kept = make([]*graph.Node, len(s.units))
			for i, w := range held.weights {
				kept[i] = graph.Reshape(collective.Part(w, 0, train.Axis), s.units[i].size)
			}
		}
	}
	kept, rest, metrics := s.update(s.recipe, shardUpdate{kept: kept, rest: held.rest, grads: grads, loss: loss, factor: factor,
		place: collective.Rank(g, train.Axis), sum: func(x *graph.Node) *graph.Node { return collective.AllReduce(x, collective.Sum, train.Axis) }})
	after := heldBy[*graph.Node]{weights: precision.Cast(kept, s.policy.Compute), rest: rest}
	if s.policy.Mixed() {
		after.masters = kept
	}
	if s.options.Stage < 3 {
		for i, w := range after.weights {
			after.weights[i] = s.gather(w)
		}
	}
	return append(after.all(), metrics)
}

// gather makes the whole of a unit, one row for each rank, of its shards.
func (s *inOne) gather(shard *graph.Node) *graph.Node {
	return collective.AllGather(graph.InsertAxes(shard, 0), 0, train.Axis)
}

// scatter sums whole gradients of a unit over the ranks, of which each gets its shard.
func (s *inOne) scatter(rows *graph.Node) *graph.Node {
	return graph.Reshape(collective.ReduceScatter(rows, collective.Sum, 0, train.Axis), rows.Shape().Dim(1))
}

// plus adds b to a, which may be nil.
func plus(a, b *graph.Node) *graph.Node {
	if a == nil || b == nil {
		return b
	}
	return graph.Add(a, b)
}

func plusEach(a, b []*graph.Node) []*graph.Node {
	sums := make([]*graph.Node, len(a))
	for i := range a {
		sums[i] = plus(a[i], b[i])
	}
	return sums
}
