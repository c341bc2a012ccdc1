package optim

import (
	"errors"
	"fmt"
	"math"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
)

// ClipByGlobalNorm scales all gradients by the same number, so that their global norm is at most max (Pascanu et al.
// 2013, "On the difficulty of training recurrent neural networks", algorithm 1); it returns them, in their own types,
// and the norm from before as [GlobalNorm] does.
//
// Where the norm is NaN or infinite, so that no scale is right, all gradients become NaN: what is wrong is seen in the
// next parameters, and not hidden as a step of zeros. A caller that would rather skip such a step looks at the norm.
//
// It builds a graph, and panics if max is not a number of at least 2⁻¹²⁶, the smallest that float32 has in full
// precision, or there are no gradients.
func ClipByGlobalNorm(grads []*graph.Node, max float64, sum func(*graph.Node) *graph.Node) (clipped []*graph.Node,
	norm *graph.Node) {
	norm = GlobalNorm(grads, sum)
	return ClipTo(grads, max, norm), norm
}

// GlobalNorm is the square root of the sum of the squares of all elements of all gradients: a float32 scalar. With
// shards, sum adds up the ranks' scalars, as an all-reduce does; with whole gradients it is nil. Gradients that several
// ranks have in common would count once for each: take their [SquareNorm] apart, then.
// It builds a graph, and panics if there are no gradients.
func GlobalNorm(grads []*graph.Node, sum func(*graph.Node) *graph.Node) *graph.Node {
	square := SquareNorm(grads)
	if sum != nil {
		square = sum(square)
	}
	return graph.Sqrt(square)
}

// NormOfParts is [GlobalNorm] of gradients of the parameters of a tree, of which a rank has parts: each element counts
// once, whichever ranks have it. A nil part is a gradient that every rank has whole, the same on each. It panics as
// GlobalNorm does.
func NormOfParts(tree params.Tree, parts []Part, grads []*graph.Node, sum func(*graph.Node) *graph.Node) *graph.Node {
	var whole, shared []*graph.Node
	for i, g := range grads {
		switch part := parts[i].(type) {
		case nil:
			whole = append(whole, g)
		case Cut:
			shared = append(shared, part.clean(g, tree[i].Shape.Dimensions))
		default: // padding's gradients are zero
			shared = append(shared, g)
		}
	}
	if len(whole) == 0 {
		return GlobalNorm(shared, sum)
	}
	square := SquareNorm(whole)
	if len(shared) > 0 {
		square = graph.Add(square, sum(SquareNorm(shared)))
	}
	return graph.Sqrt(square)
}

// SquareNorm is the sum of the squares of all elements of all gradients that this rank has: a float32 scalar, computed
// in float32. It builds a graph, and panics if there are no gradients.
func SquareNorm(grads []*graph.Node) *graph.Node {
	if len(grads) == 0 {
		panic(errors.New("optim: there are no gradients: give at least one"))
	}
	var total *graph.Node
	for _, g := range grads {
		square := graph.ReduceAllSum(graph.Square(graph.ConvertDType(g, dtypes.Float32)))
		if total == nil {
			total = square
		} else {
			total = graph.Add(total, square)
		}
	}
	return total
}

// ClipTo is [ClipByGlobalNorm] for a norm that is known, a float32 scalar.
func ClipTo(grads []*graph.Node, max float64, norm *graph.Node) []*graph.Node {
	if !(max >= 0x1p-126) || math.IsInf(max, 1) {
		panic(fmt.Errorf("optim: gradients are to be clipped to a norm of %g: give a number of at least "+
			"1.2e-38, such as 1", max))
	}
	g, t := norm.Graph(), norm.DType()
	scale := graph.MinScalar(graph.Div(graph.Scalar(g, t, max), norm), 1)
	scale = graph.Where(graph.IsFinite(norm), scale, graph.Scalar(g, t, math.NaN()))
	clipped := make([]*graph.Node, len(grads))
	for i, grad := range grads {
		wide := grad.DType()
		if wide.IsHalfPrecision() {
			wide = t
		}
		product := graph.Mul(graph.ConvertDType(grad, wide), graph.ConvertDType(scale, wide))
		clipped[i] = graph.ConvertDType(product, grad.DType())
	}
	return clipped
}
