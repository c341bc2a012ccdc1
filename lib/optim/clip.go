package optim

import (
	"errors"
	"fmt"
	"math"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
)

// GlobalNorm returns the square root of the sum of the squares of all elements of all gradients: a float32 scalar. For
// shards, sum is an all-reduce over the ranks; for full gradients it is nil. A gradient that several ranks have would
// be counted by each: pass it to [SquareNorm] separately. GlobalNorm builds a graph, and panics if there are no
// gradients.
func GlobalNorm(grads []*graph.Node, sum func(*graph.Node) *graph.Node) *graph.Node {
	square := SquareNorm(grads)
	if sum != nil {
		square = sum(square)
	}
	return graph.Sqrt(square)
}

// NormOfParts is [GlobalNorm] for gradients of which a rank has parts: each element counts once, even if several ranks
// have it. A nil part is a full gradient that every rank has. It panics as GlobalNorm does.
func NormOfParts(tree params.Tree, parts []Part, grads []*graph.Node, sum func(*graph.Node) *graph.Node) *graph.Node {
	var full, sharded []*graph.Node
	for i, g := range grads {
		switch part := parts[i].(type) {
		case nil:
			full = append(full, g)
		case Cut:
			sharded = append(sharded, part.clean(g, tree[i].Shape.Dimensions))
		default: // gradients of padding are zero
			sharded = append(sharded, g)
		}
	}
	if len(full) == 0 {
		return GlobalNorm(sharded, sum)
	}
	square := SquareNorm(full)
	if len(sharded) > 0 {
		square = graph.Add(square, sum(SquareNorm(sharded)))
	}
	return graph.Sqrt(square)
}

// SquareNorm returns the sum of the squares of all elements of this rank's gradients: a float32 scalar, computed in
// float32. It builds a graph, and panics if there are no gradients.
func SquareNorm(grads []*graph.Node) *graph.Node {
	if len(grads) == 0 {
		panic(errors.New("optim: there are no gradients: give at least one"))
	}
	total := graph.ScalarZero(grads[0].Graph(), dtypes.Float32)
	for _, g := range grads {
		total = graph.Add(total, graph.ReduceAllSum(graph.Square(graph.ConvertDType(g, dtypes.Float32))))
	}
	return total
}

// ClipTo scales all gradients by one factor so that their global norm, a float32 scalar that [GlobalNorm] or
// [NormOfParts] computed, becomes at most max (Pascanu et al. 2013, "On the difficulty of training recurrent neural
// networks", algorithm 1). The gradients keep their types.
//
// If the norm is NaN or infinite, all gradients become NaN, so that the failure shows in the next parameters rather
// than as a step of zeros. A caller that prefers to skip such a step checks the norm.
//
// It builds a graph, and panics if max is less than 2⁻¹²⁶, the smallest normal float32.
func ClipTo(grads []*graph.Node, max float64, norm *graph.Node) []*graph.Node {
	if !(max >= 0x1p-126) || math.IsInf(max, 1) {
		panic(fmt.Errorf("optim: the gradients' largest norm is %g: give a number of at least 1.2e-38, such as 1", max))
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
