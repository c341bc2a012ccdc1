// Package sequence shards a sequence over devices: context parallelism. Each device has some of a sequence's tokens,
// and everything in a Transformer that computes token by token needs no other device. Attention does: a query sees keys
// that lie elsewhere. There are two ways, and their product:
//
// Ring attention (Liu, Zaharia and Abbeel 2023, arXiv:2310.01889) leaves the queries where they are and passes keys and
// values around a ring of ranks. In each hop a rank attends to the keys that it has then, and merges the partial result
// with those before (flash.Partial). Scores never exist as a whole, no rank ever has more than two ranks' keys, and so
// P devices take a context P times as long. With a causal mask it matters which tokens a rank has: see Placement.
//
// DeepSpeed-Ulysses (Jacobs et al. 2023, arXiv:2309.14509) exchanges heads for tokens: an all-to-all gives each rank
// all tokens of some heads, which attend as on one device, and another one gives the tokens back. It moves less than a
// ring but needs as many key/value heads as ranks.
//
// The hybrid of both (USP; Fang and Zhao 2024, arXiv:2405.07719) has Ulysses inside groups of ranks, and rings between
// groups. What each moves is [Group.Traffic], what each rank of a ring computes is [Placement.Work].
package sequence

import (
	"fmt"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/collective"
)

// Group is the devices that share sequences, along axes of the mesh that a graph is compiled for with xla.Compile. The
// zero Group is one device alone: it has all tokens, and its attention is flash.Attention.
//
// Ring rank i has Placement.Positions(tokens', r, i), for tokens' the tokens and so much padding at the end that r
// ranks of the ring and u of Ulysses have equally many: the next multiple of r·u, and for Zigzag of 2·r·u. Ulysses rank
// j has the j-th of u contiguous pieces of that list. So Ulysses alone is contiguous.
type Group struct {
	Ring    string // mesh axis around which keys and values go; "" is none
	Ulysses string // mesh axis within which heads are exchanged for tokens; "" is none
	// Gather, along Ring, gathers all keys and values instead of passing them around, as Llama 3 does (Llama Team 2024,
	// arXiv:2407.21783, §3.3.2). A rank then keeps the keys and values of all tokens between the passes.
	Gather    bool
	Placement Placement // of tokens over the ring
	// Reduce is the type in which partial results and the gradients of keys and values are summed up over hops, or over
	// ranks with Gather. Invalid, its zero, is Float32, and Float64 where attention is in float64. BFloat16 is there to
	// show that it is worse.
	Reduce dtypes.DType
}

// Validate returns an error for a group that no mesh can have.
func (s Group) Validate() error {
	if err := s.Placement.Validate(); err != nil {
		return err
	}
	switch {
	case s.Ring != "" && s.Ring == s.Ulysses:
		return fmt.Errorf("sequence: mesh axis %q is that of the ring and of Ulysses: choose two "+
			"axes, or one of the two", s.Ring)
	case s.Ring == "" && s.Gather:
		return fmt.Errorf("sequence: keys are to be gathered along no axis: choose a mesh axis for Ring, or no Gather")
	case s.Ring == "" && s.Placement != "" && s.Placement != Contiguous:
		return fmt.Errorf("sequence: tokens are placed %s on no ring: choose a mesh axis for Ring, or %q", s.Placement,
			string(Contiguous))
	case !slices.Contains([]dtypes.DType{dtypes.InvalidDType, dtypes.Float32, dtypes.BFloat16}, s.Reduce):
		return fmt.Errorf("sequence: sums in %s: choose Float32 or BFloat16, or nothing for the usual", s.Reduce)
	}
	return nil
}

// Axes returns the group's mesh axes: Ring, which is the major one, and Ulysses, without those that are not there.
// Tokens sharded over these axes in this order lie as Positions says once they are permuted.
func (s Group) Axes() []string {
	return slices.DeleteFunc([]string{s.Ring, s.Ulysses}, func(axis string) bool { return axis == "" })
}

// Local returns how many tokens each device has of sequences of so many, padding included. It panics on a group that
// Validate refuses, axes that the mesh lacks, and sequences without tokens.
func (s Group) Local(g *graph.Graph, tokens int) int { return s.layout(g, tokens).local() }

// Positions returns those of this device's tokens, (Local) int32; of padding they are tokens and above. It panics where
// Local does.
func (s Group) Positions(g *graph.Graph, tokens int) *graph.Node {
	l := s.layout(g, tokens)
	index := iota32(g, l.local())
	if l.ulysses > 1 {
		index = graph.Add(index, graph.MulScalar(collective.Rank(g, s.Ulysses), l.local()))
	}
	return l.positions(index, l.ringRank(g))
}

// Real returns which of this device's tokens are none of padding, (Local) bool. It panics where Local does.
func (s Group) Real(g *graph.Graph, tokens int) *graph.Node {
	return graph.LessThan(s.Positions(g, tokens), graph.Const(g, int32(tokens)))
}

// Take returns this device's tokens of x, which has all of them along an axis; -1 is the last. Padding repeats the last
// token. The gradient of x is that of this device's tokens, and 0 of all others. It panics where Local does, and if x
// has no such axis.
func (s Group) Take(x *graph.Node, axis int) *graph.Node {
	if axis < -x.Rank() || axis >= x.Rank() {
		panic(fmt.Errorf("sequence: %s has no axis %d to take tokens of", x.Shape(), axis))
	}
	axis = (axis + x.Rank()) % x.Rank()
	tokens := x.Shape().Dim(axis)
	if l := s.layout(x.Graph(), tokens); l.ring*l.ulysses == 1 && l.padding() == 0 {
		return x
	}
	at := s.Positions(x.Graph(), tokens)
	at = graph.Min(at, graph.Const(x.Graph(), int32(tokens-1)))
	front := make([]int, x.Rank()) // the tokens' axis comes first; the exchange undoes itself
	for i := range front {
		front[i] = i
	}
	front[0], front[axis] = axis, 0
	rows := graph.Gather(graph.TransposeAllAxes(x, front...), graph.InsertAxes(at, -1))
	return graph.TransposeAllAxes(rows, front...)
}

// layout is a group on a mesh, with sequences of so many tokens.
type layout struct {
	Group
	tokens, ring, ulysses int // ranks along the two axes; 1 where there is none
}

func (s Group) layout(g *graph.Graph, tokens int) layout {
	if err := s.Validate(); err != nil {
		panic(err)
	}
	size := func(axis string) int {
		if axis == "" {
			return 1
		}
		return collective.AxisSize(g, axis)
	}
	return s.on(tokens, size(s.Ring), size(s.Ulysses))
}

// on is layout with no mesh.
func (s Group) on(tokens, ring, ulysses int) layout {
	if tokens < 1 {
		panic(fmt.Errorf("sequence: sequences of %d tokens: choose at least 1", tokens))
	}
	return layout{s, tokens, ring, ulysses}
}

// local returns how many tokens a device has.
func (l layout) local() int {
	runs := l.Placement.runs()
	return runs * ceilDiv(l.tokens, runs*l.ring*l.ulysses)
}

// onRing returns how many tokens a rank of the ring has, with all its ranks of Ulysses.
func (l layout) onRing() int { return l.local() * l.ulysses }

func (l layout) padding() int { return l.onRing()*l.ring - l.tokens }

// ringRank returns the device's rank along the ring.
func (l layout) ringRank(g *graph.Graph) *graph.Node {
	if l.ring == 1 {
		return graph.Const(g, int32(0))
	}
	return collective.Rank(g, l.Ring)
}

// positions returns those of the tokens numbered index of a ring rank's.
func (l layout) positions(index, rank *graph.Node) *graph.Node {
	return l.Placement.at(index, rank, l.onRing(), l.ring)
}

func iota32(g *graph.Graph, n int) *graph.Node { return graph.Iota(g, shapes.Make(dtypes.Int32, n), 0) }
