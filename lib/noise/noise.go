// Package noise makes random bits inside a graph, each a function of a key and of the place of the value it is for.
//
// Nothing is drawn and nothing is kept: a device that has a part of an array makes the bits that one device would make
// for that part, and a second pass makes those of the first. (A counter-based generator, as in Salmon et al. 2011,
// "Parallel Random Numbers: As Easy as 1, 2, 3", with a lighter hash: good enough for dropout and rounding, not for
// cryptography.)
package noise

import (
	"fmt"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
)

// Bits returns 32 random bits, a uint32, for each element of an array of the given dimensions. The key is a uint32
// scalar; the site tells one use of a key from another. The first axis begins at element row of that axis of the whole
// array, a uint32 scalar; nil is 0. The bits repeat after 2³² elements. It panics if key or row is not what it says.
func Bits(key *graph.Node, site uint32, row *graph.Node, dimensions ...int) *graph.Node {
	g := key.Graph()
	if row == nil {
		row = graph.Const(g, uint32(0))
	}
	for _, n := range []*graph.Node{key, row} {
		if !n.IsScalar() || n.DType() != dtypes.Uint32 {
			panic(fmt.Errorf("noise: a key or row of shape %s: want a Uint32 scalar", n.Shape()))
		}
	}
	shape := shapes.Make(dtypes.Uint32, dimensions...)
	index := row
	if !shape.IsScalar() {
		index = graph.Add(graph.Iota(g, shape, 0), row)
		for axis := 1; axis < shape.Rank(); axis++ {
			index = graph.Add(graph.Mul(index, graph.Const(g, uint32(shape.Dim(axis)))), graph.Iota(g, shape, axis))
		}
	}
	key = hash(graph.Add(hash(key), graph.Const(g, site)))
	return hash(graph.BitwiseXor(hash(index), graph.BroadcastToDims(key, dimensions...)))
}

// Key returns the key of a step, an integer scalar, in a run with a seed: a uint32 scalar. The steps of two seeds have
// no more in common than any two steps.
func Key(seed uint32, step *graph.Node) *graph.Node {
	g := step.Graph()
	mixed := hash(hash(graph.Const(g, seed))) // twice, or seed 1 at step 2 would be seed 2 at step 1
	return hash(graph.BitwiseXor(mixed, hash(graph.ConvertDType(step, dtypes.Uint32))))
}

// hash mixes the bits of each uint32 of x, so that every bit of it changes every bit of the result with a chance of about
// a half: MurmurHash3's 32-bit finalizer (Appleby 2011, github.com/aappleby/smhasher).
func hash(x *graph.Node) *graph.Node {
	number := func(v uint32) *graph.Node { return graph.Const(x.Graph(), v) }
	fold := func(x *graph.Node, by uint32) *graph.Node {
		return graph.BitwiseXor(x, graph.BitwiseShiftRightLogical(x, number(by)))
	}
	x = graph.Add(x, number(0x9E3779B9)) // 0 would stay 0
	x = graph.Mul(fold(x, 16), number(0x85EBCA6B))
	return fold(graph.Mul(fold(x, 13), number(0xC2B2AE35)), 16)
}
