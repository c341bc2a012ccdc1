package expert

import (
	"math"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/autodiff"
	"github.com/shardbook/shardbook/lib/precision"
)

// order is the choices of all tokens, k for each, sorted by expert: what an expert computes are consecutive rows.
type order struct {
	choice *graph.Node // (k·tokens) int32: the choice that is at each place
	place  *graph.Node // (tokens,k) int32: where each choice is; after all others, if it is dropped
	counts *graph.Node // (E) int32: the rows of each expert
}

// sorted sorts the chosen experts (…,k), by expert, then by token.
func sorted(chosen *graph.Node, experts int) order {
	k, n := chosen.Shape().Dim(-1), chosen.Shape().Size()
	flat := graph.Reshape(chosen, n)
	all := graph.Iota(chosen.Graph(), shapes.Make(dtypes.Int32, experts, n), 0)
	mine := graph.Equal(all, graph.Reshape(flat, 1, n))
	choice := sortedBy(flat, experts+1)
	return order{
		choice: choice,
		place:  graph.Reshape(sortedBy(choice, n), n/k, k),
		counts: graph.ReduceSum(graph.ConvertDType(mine, dtypes.Int32), 1),
	}
}

// sortedBy returns the indices of the integers x (n), all from 0 to below end, in the order of these, and of the
// indices where they are equal. For a permutation it is the inverse.
func sortedBy(x *graph.Node, end int) *graph.Node {
	n, of := x.Shape().Size(), dtypes.Int32
	if end*n > math.MaxInt32 {
		of = dtypes.Int64
	}
	index := graph.Iota(x.Graph(), shapes.Make(of, n), 0)
	key := graph.Add(graph.MulScalar(graph.ConvertDType(x, of), n), index)
	return graph.ConvertDType(graph.ModScalar(graph.Sort(key, 0, true), n), dtypes.Int32)
}

// gather returns the rows of x (n,C) with the given indices (…), (…,C).
func gather(x, indices *graph.Node) *graph.Node {
	return graph.Gather(x, graph.InsertAxes(indices, -1))
}

// spread copies the tokens x (tokens,C) to the places of their choices, (k·tokens,C). Both passes gather: a scatter is
// slow on CPUs.
func (o order) spread(x *graph.Node) *graph.Node {
	k := o.place.Shape().Dim(1)
	return autodiff.Custom([]*graph.Node{x, o.choice, o.place},
		func(in []*graph.Node) []*graph.Node {
			return []*graph.Node{gather(in[0], graph.DivScalar(in[1], k))}
		},
		func(in, _, v []*graph.Node) []*graph.Node {
			sum := graph.ReduceSum(precision.Widen(gather(v[0], in[2])), 1)
			return []*graph.Node{graph.ConvertDType(sum, x.DType()), nil, nil}
		})[0]
}

// collect sums the rows (k·tokens,C) of each token's choices, with weights (tokens,k): (tokens,C) in the type of the
// weights.
func (o order) collect(rows, weights *graph.Node) *graph.Node {
	k, of := o.place.Shape().Dim(1), weights.DType()
	wide := func(x *graph.Node) *graph.Node { return graph.ConvertDType(x, of) }
	return autodiff.Custom([]*graph.Node{rows, weights, o.choice, o.place},
		func(in []*graph.Node) []*graph.Node {
			rows, weights, place := in[0], in[1], in[3]
			each := graph.Mul(wide(gather(rows, place)), graph.InsertAxes(weights, -1)) // (tokens,k,C)
			return []*graph.Node{graph.ReduceSum(each, 1)}
		},
		func(in, _, v []*graph.Node) []*graph.Node {
			rows, weights, choice, place := in[0], in[1], in[2], in[3]
			weight := gather(graph.Reshape(weights, -1, 1), choice) // (k·tokens,1)
			dRows := graph.Mul(gather(v[0], graph.DivScalar(choice, k)), weight)
			dWeights := graph.ReduceSum(graph.Mul(wide(gather(rows, place)), graph.InsertAxes(v[0], 1)), -1)
			return []*graph.Node{graph.ConvertDType(dRows, rows.DType()), dWeights, nil, nil}
		})[0]
}
