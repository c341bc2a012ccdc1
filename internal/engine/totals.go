package engine

import (
	"fmt"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
)

// totals returns what clipping and loss scaling need of all gradients: a vector of the number of ranks with gradients
// that are not finite, and of the sum of squares, in which each element of the model counts once. It is nil if the
// recipe does neither.
func (b *build) totals(members []int, grads []*graph.Node) *graph.Node {
	if !b.Recipe.NeedsAllGradients() {
		return nil
	}
	bad := graph.ScalarZero(b.g, dtypes.Float32)
	if len(b.policy.Scaling.States()) > 0 {
		bad = graph.ConvertDType(graph.LogicalNot(precision.Finite(grads)), dtypes.Float32)
		if b.devices() > 1 {
			bad = collective.AllReduce(bad, collective.Max)
		}
		grads = b.policy.Scaling.Unscale(grads, b.scaling())
	}
	squares := graph.ScalarZero(b.g, dtypes.Float32)
	for _, cut := range []bool{false, true} { // replicated parameters count on one device
		axes := slices.Clone(b.within)
		if cut {
			axes = append(axes, b.Shards.Axis)
		}
		var of []*graph.Node
		for k, at := range members {
			if b.counted[at] && (b.cuts[at] != nil) == cut {
				of = append(of, b.countedPart(at, grads[k]))
			}
		}
		if len(of) == 0 {
			continue
		}
		sum := optim.SquareNorm(of)
		if len(axes) > 0 {
			sum = collective.AllReduce(sum, collective.Sum, axes...)
		}
		squares = graph.Add(squares, sum)
	}
	if all := graph.Stack([]*graph.Node{bad, squares}, 0); !b.local() {
		return b.between(all, "")
	} else {
		return all
	}
}

// countedPart masks the elements of a gradient that other tensor-parallel devices count.
func (b *build) countedPart(i int, x *graph.Node) *graph.Node {
	cut := b.cuts[i]
	if cut == nil {
		return x
	}
	counts := make([][]float32, cut.Ranks())
	for r := range counts {
		for _, is := range cut.Counted(r) {
			count := float32(0)
			if is {
				count = 1
			}
			counts[r] = append(counts[r], count)
		}
	}
	along := graph.Reshape(collective.Part(graph.Const(b.g, counts), 0, b.Shards.Axis), cut.Length())
	dims := b.tree[i].Shape.Dimensions
	var others []int
	for a := range dims {
		if a != cut.Axis {
			others = append(others, a)
		}
	}
	mask := graph.ExpandAndBroadcast(along, dims, others)
	if b.shards > 1 {
		mask = b.row(b.columns(i, mask))
	}
	return graph.Where(graph.GreaterThan(mask, graph.ZerosLike(mask)), x, graph.ZerosLike(x))
}

// share describes the device's part of the model, and the totals of all gradients.
func (b *build) share(recipe train.Recipe, members []int, totals *graph.Node) (s train.Shard) {
	switch {
	case b.flat:
		place := graph.ConvertDType(b.shardIndex(), dtypes.Int64) // a parameter may have more than 2³¹ elements
		var flats []optim.Flat
		for _, at := range members {
			n := b.length(at)
			flats = append(flats, optim.Flat{Length: n, Offset: graph.MulScalar(place, n), Sum: b.sumOver(at)})
		}
		s = recipe.FlatShard(flats)
	case len(b.common.cuts) > 0:
		var cuts []*params.Cut
		for _, at := range members {
			cuts = append(cuts, b.own.cuts[at])
		}
		s = recipe.CutShard(b.g, b.Shards.Axis, cuts)
	}
	for _, at := range members {
		s.Places, s.Counted = append(s.Places, b.places[at]), append(s.Counted, b.counted[at])
	}
	s.All = &train.Global{}
	if totals != nil {
		element := func(i int) *graph.Node { return graph.Reshape(graph.Slice(totals, graph.AxisElem(i))) }
		bad := element(0)
		s.All.Finite, s.All.Norm = graph.Equal(bad, graph.ZerosLike(bad)), graph.Sqrt(element(1))
	}
	return s
}

// sumOver sums over the shards of a parameter.
func (b *build) sumOver(at int) func(*graph.Node) *graph.Node {
	return func(x *graph.Node) *graph.Node {
		if b.own.cuts[at] != nil {
			panic(errSums(b.full[at]))
		}
		if len(b.within) > 0 {
			return collective.AllReduce(x, collective.Sum, b.within...)
		}
		if b.shards == 1 {
			return x
		}
		return b.between(x, b.axis)
	}
}

// errSums rejects optimizers that sum over a parameter that both tensor parallelism and ZeRO shard.
type errSums params.Spec

func (e errSums) Error() string {
	return fmt.Sprintf("engine: the optimizer sums over the elements of %s, which both tensor parallelism and ZeRO "+
		"shard: choose one of the two, or an optimizer that does not sum, such as adamw", params.Spec(e))
}
