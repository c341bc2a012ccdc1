// Package noise computes random bits inside a graph, each as a function of a key and of the index of an element.
//
// There is no state: a device that has a shard of an array computes the bits that one device would compute for that
// shard, and recomputation gives the same bits. (It is a counter-based generator, as in Salmon et al. 2011, "Parallel
// Random Numbers: As Easy as 1, 2, 3", with a lighter hash: good enough for dropout and rounding, not for
// cryptography.)
package noise

import (
	"fmt"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
)

// Axis is an axis of an array of which a device has some indices.
type Axis struct {
	Whole int         // the length of the axis in the full array; ignored for the first axis
	Index *graph.Node // the device's indices, a vector of uint32 or int32; nil for all
}

// Full returns the axes of an array of the given dimensions of which a device has all.
func Full(dimensions []int) []Axis {
	axes := make([]Axis, len(dimensions))
	for i, n := range dimensions {
		axes[i].Whole = n
	}
	return axes
}

// Rows is the first axis of an array of which a device has n indices, starting at row, a uint32 scalar; nil is 0.
func Rows(row *graph.Node, n int) Axis {
	if row == nil {
		return Axis{Whole: n}
	}
	scalar(row)
	return Axis{Index: graph.Add(graph.Iota(row.Graph(), shapes.Make(dtypes.Uint32, n), 0), row)}
}

// Bits returns 32 random bits, a uint32, for each element of an array of the given dimensions. The key is a uint32
// scalar; the site distinguishes uses of a key. The first axis starts at index row of the full array's, a uint32
// scalar; nil is 0. The bits repeat after 2³² elements. It panics if key or row is not a uint32 scalar.
func Bits(key *graph.Node, site uint32, row *graph.Node, dimensions ...int) *graph.Node {
	axes := Full(dimensions)
	if row != nil {
		if len(axes) == 0 {
			scalar(row)
			return bits(key, site, row)
		}
		axes[0] = Rows(row, dimensions[0])
	}
	return BitsAt(key, site, axes...)
}

// BitsAt is [Bits] for a device that has some of the indices along each axis: it returns the bits that one device would
// compute for these elements of the full array. It panics if the key or an index has a wrong shape or type.
func BitsAt(key *graph.Node, site uint32, axes ...Axis) *graph.Node {
	g := key.Graph()
	dimensions := make([]int, len(axes))
	for i, a := range axes {
		if dimensions[i] = a.Whole; a.Index == nil {
			continue
		}
		if t := a.Index.DType(); a.Index.Rank() != 1 || t != dtypes.Uint32 && t != dtypes.Int32 {
			panic(fmt.Errorf("noise: indices of axis %d of shape %s: use a vector of Uint32 or Int32", i,
				a.Index.Shape()))
		}
		dimensions[i] = a.Index.Shape().Dim(0)
	}
	place := graph.Const(g, uint32(0))
	for i, a := range axes {
		var at *graph.Node
		if a.Index == nil {
			at = graph.Iota(g, shapes.Make(dtypes.Uint32, dimensions...), i)
		} else {
			along := slices.Repeat([]int{1}, len(axes))
			along[i] = dimensions[i]
			at = graph.BroadcastToDims(graph.Reshape(graph.ConvertDType(a.Index, dtypes.Uint32), along...),
				dimensions...)
		}
		if i == 0 {
			place = at
			continue
		}
		place = graph.Add(graph.Mul(place, graph.Const(g, uint32(a.Whole))), at)
	}
	return bits(key, site, place)
}

// bits hashes indices.
func bits(key *graph.Node, site uint32, place *graph.Node) *graph.Node {
	scalar(key)
	key = hash(graph.Add(hash(key), graph.Const(key.Graph(), site)))
	return hash(graph.BitwiseXor(hash(place), graph.BroadcastToDims(key, place.Shape().Dimensions...)))
}

func scalar(n *graph.Node) {
	if !n.IsScalar() || n.DType() != dtypes.Uint32 {
		panic(fmt.Errorf("noise: a key or row of shape %s: use a Uint32 scalar", n.Shape()))
	}
}

// Key returns the key of a step, an integer scalar, in a run with a seed: a uint32 scalar. Different seeds give
// unrelated keys.
func Key(seed uint32, step *graph.Node) *graph.Node {
	g := step.Graph()
	mixed := hash(hash(graph.Const(g, seed))) // twice, or seed 1 at step 2 would be seed 2 at step 1
	return hash(graph.BitwiseXor(mixed, hash(graph.ConvertDType(step, dtypes.Uint32))))
}

// hash mixes the bits of each uint32 of x so that every input bit changes every output bit with a probability of about
// one half: MurmurHash3's 32-bit finalizer (Appleby 2011, github.com/aappleby/smhasher).
func hash(x *graph.Node) *graph.Node {
	number := func(v uint32) *graph.Node { return graph.Const(x.Graph(), v) }
	fold := func(x *graph.Node, by uint32) *graph.Node {
		return graph.BitwiseXor(x, graph.BitwiseShiftRightLogical(x, number(by)))
	}
	x = graph.Add(x, number(0x9E3779B9)) // or 0 would be mapped to 0
	x = graph.Mul(fold(x, 16), number(0x85EBCA6B))
	return fold(graph.Mul(fold(x, 13), number(0xC2B2AE35)), 16)
}
