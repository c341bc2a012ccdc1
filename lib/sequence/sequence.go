// Package sequence implements context parallelism (sequence parallelism): it splits the tokens of each sequence over
// devices. Only attention needs communication, since a query sees keys of other devices. There are two methods, and
// their combination:
//
// Ring attention (Liu, Zaharia and Abbeel 2023, arXiv:2310.01889) sends keys and values around a ring of ranks. In each
// hop a rank attends to the keys that it has, and merges the partial result with those before (flash.Partial). No rank
// ever stores all scores, or more than two ranks' keys, so P devices support a P times longer context. With a causal
// mask the tokens of a rank decide its work: see [Placement].
//
// DeepSpeed-Ulysses (Jacobs et al. 2023, arXiv:2309.14509) exchanges heads for tokens: an all-to-all gives each rank
// all tokens of some heads, for attention as on one device, and another all-to-all returns the tokens. It sends less
// than a ring but needs at least as many key/value heads as ranks.
//
// The hybrid of both (USP; Fang and Zhao 2024, arXiv:2405.07719) uses Ulysses within groups of ranks, and rings between
// groups. [Group.Traffic] predicts the communication, [Placement.Work] the computation of each rank of a ring.
package sequence

import (
	"fmt"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/collective"
)

// Group is the devices of context parallelism, along mesh axes of a graph that is compiled with xla.Compile. The zero
// Group is a single device: it has all tokens, and its attention is flash.Attention.
//
// With r ring ranks and u Ulysses ranks the tokens are padded to a multiple of r·u, or of 2·r·u for Zigzag. Ring rank i
// has the positions Placement.Positions(padded tokens, r, i), and its Ulysses rank j the j-th of u contiguous parts of
// that list. Ulysses without a ring is always contiguous.
type Group struct {
	Ring    string // mesh axis of ring attention; "" for none
	Ulysses string // mesh axis of Ulysses; "" for none
	// Gather replaces the ring along the axis Ring by an all-gather of all keys and values, as in Llama 3 (Llama Team
	// 2024, arXiv:2407.21783, §3.3.2). A rank then saves the keys and values of all tokens.
	Gather    bool
	Placement Placement // of tokens on the ring
	// Reduce is the type in which partial results and the gradients of keys and values accumulate over hops, or over
	// ranks with Gather. It defaults to Float32, or Float64 for attention in float64. BFloat16 is less accurate.
	Reduce dtypes.DType
}

// Validate returns an error for an invalid group.
func (s Group) Validate() error {
	if err := s.Placement.Validate(); err != nil {
		return err
	}
	switch {
	case s.Ring != "" && s.Ring == s.Ulysses:
		return fmt.Errorf("sequence: Ring and Ulysses both are mesh axis %q: choose two axes, or set only one", s.Ring)
	case s.Ring == "" && s.Gather:
		return fmt.Errorf("sequence: Gather is set without Ring: choose a mesh axis for Ring, or unset Gather")
	case s.Ring == "" && s.Placement != "" && s.Placement != Contiguous:
		return fmt.Errorf("sequence: Placement is %q without Ring: choose a mesh axis for Ring, or %q",
			string(s.Placement), string(Contiguous))
	case !slices.Contains([]dtypes.DType{dtypes.InvalidDType, dtypes.Float32, dtypes.BFloat16}, s.Reduce):
		return fmt.Errorf("sequence: Reduce is %s: choose Float32 or BFloat16, or leave it unset", s.Reduce)
	}
	return nil
}

// Axes returns the group's mesh axes that are set: Ring first, the major one, then Ulysses. Shard tokens over these
// axes in this order, after permuting them as Positions says.
func (s Group) Axes() []string {
	return slices.DeleteFunc([]string{s.Ring, s.Ulysses}, func(axis string) bool { return axis == "" })
}

// Local returns the number of tokens of each device, padding included, for sequences of the given length. It panics for
// an invalid group, for axes that the mesh does not have, and for less than 1 token.
func (s Group) Local(g *graph.Graph, tokens int) int { return s.layout(g, tokens).local() }

// Positions returns the positions of the device's tokens, (Local) int32. Positions of padding are at least tokens. It
// panics if Local does.
func (s Group) Positions(g *graph.Graph, tokens int) *graph.Node {
	l := s.layout(g, tokens)
	index := iota32(g, l.local())
	if l.ulysses > 1 {
		index = graph.Add(index, graph.MulScalar(collective.Rank(g, s.Ulysses), l.local()))
	}
	return l.positions(index, l.ringRank(g))
}

// Real returns a mask, (Local) bool, that is false for padding. It panics if Local does.
func (s Group) Real(g *graph.Graph, tokens int) *graph.Node {
	return graph.LessThan(s.Positions(g, tokens), graph.Const(g, int32(tokens)))
}

// Take returns the device's tokens of x, which has all tokens along an axis (-1 is the last). Padding repeats the last
// token. The gradient of x is 0 for the other devices' tokens. It panics if Local does, or if x does not have the axis.
func (s Group) Take(x *graph.Node, axis int) *graph.Node {
	if axis < -x.Rank() || axis >= x.Rank() {
		panic(fmt.Errorf("sequence: Take: x has shape %s and no axis %d", x.Shape(), axis))
	}
	axis = (axis + x.Rank()) % x.Rank()
	tokens := x.Shape().Dim(axis)
	if l := s.layout(x.Graph(), tokens); l.ring*l.ulysses == 1 && l.padding() == 0 {
		return x
	}
	at := s.Positions(x.Graph(), tokens)
	at = graph.Min(at, graph.Const(x.Graph(), int32(tokens-1)))
	front := make([]int, x.Rank()) // swaps the tokens' axis with the first one
	for i := range front {
		front[i] = i
	}
	front[0], front[axis] = axis, 0
	rows := graph.Gather(graph.TransposeAllAxes(x, front...), graph.InsertAxes(at, -1))
	return graph.TransposeAllAxes(rows, front...)
}

// layout is a group on a mesh, for sequences of a number of tokens.
type layout struct {
	Group
	tokens, ring, ulysses int // tokens, and ranks along the two axes
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

// on is layout without a mesh.
func (s Group) on(tokens, ring, ulysses int) layout {
	if tokens < 1 {
		panic(fmt.Errorf("sequence: the number of tokens is %d: choose at least 1", tokens))
	}
	return layout{s, tokens, ring, ulysses}
}

// local returns the number of tokens of a device.
func (l layout) local() int {
	chunks := l.Placement.chunks()
	return chunks * ceilDiv(l.tokens, chunks*l.ring*l.ulysses)
}

// onRing returns the number of tokens of a ring rank, with all its Ulysses ranks.
func (l layout) onRing() int { return l.local() * l.ulysses }

func (l layout) padding() int { return l.onRing()*l.ring - l.tokens }

// ringRank returns the device's rank along the ring.
func (l layout) ringRank(g *graph.Graph) *graph.Node {
	if l.ring == 1 {
		return graph.Const(g, int32(0))
	}
	return collective.Rank(g, l.Ring)
}

// positions returns the positions of a ring rank's tokens at index.
func (l layout) positions(index, rank *graph.Node) *graph.Node {
	return l.Placement.at(index, rank, l.onRing(), l.ring)
}

func iota32(g *graph.Graph, n int) *graph.Node { return graph.Iota(g, shapes.Make(dtypes.Int32, n), 0) }

// Placement assigns the tokens of a sequence to the ranks of a ring.
type Placement string

const (
	// Contiguous gives rank r the r-th chunk of tokens. With a causal mask the last rank has the most work, and the
	// ring waits for it in every hop. It is the default.
	Contiguous Placement = "contiguous"

	// Striped gives rank r of P the tokens r, r+P, r+2P, …: Striped Attention (Brandon et al. 2023, arXiv:2311.09431,
	// §3). In every hop every rank sees half of the pairs, except for the diagonal.
	Striped Placement = "striped"

	// Zigzag cuts the sequence into 2P chunks and gives rank r chunks r and 2P−1−r, so that every rank has the same
	// work under a causal mask (Llama Team 2024, arXiv:2407.21783, §3.3.2).
	Zigzag Placement = "zigzag"
)

// Placements returns all placements.
func Placements() []Placement { return []Placement{Contiguous, Striped, Zigzag} }

// Validate returns an error for an unknown placement.
func (p Placement) Validate() error {
	if p != "" && !slices.Contains(Placements(), p) {
		return fmt.Errorf("sequence: unknown placement %q: choose %q, %q or %q", string(p), string(Contiguous),
			string(Striped), string(Zigzag))
	}
	return nil
}

// Local returns the number of tokens of each rank, padding included: ⌈T/P⌉, or 2·⌈T/2P⌉ for Zigzag. It panics if tokens
// or ranks is less than 1.
func (p Placement) Local(tokens, ranks int) int {
	if tokens < 1 || ranks < 1 {
		panic(fmt.Errorf("sequence: %d tokens on %d ranks: choose at least one of each", tokens, ranks))
	}
	chunks := p.chunks()
	return chunks * ceilDiv(tokens, chunks*ranks)
}

// chunks returns the number of contiguous chunks of equal length of a rank's tokens.
func (p Placement) chunks() int {
	if p == Zigzag {
		return 2
	}
	return 1
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

// Positions returns the positions of a rank's tokens in the rank's order. Every rank has Local positions; those ≥
// tokens are padding at the end of the sequence. It panics for an invalid rank, and if Local does.
func (p Placement) Positions(tokens, ranks, rank int) []int {
	if rank < 0 || rank >= ranks {
		panic(fmt.Errorf("sequence: rank %d of %d: choose 0 to %d", rank, ranks, ranks-1))
	}
	positions := make([]int, p.Local(tokens, ranks))
	for i := range positions {
		switch half := len(positions) / 2; {
		case p == Striped:
			positions[i] = i*ranks + rank
		case p == Zigzag && i < half:
			positions[i] = rank*half + i
		case p == Zigzag:
			positions[i] = (2*ranks-1-rank)*half + i - half
		default:
			positions[i] = rank*len(positions) + i
		}
	}
	return positions
}

// at is Positions in a graph: the positions of a rank's tokens at index, (N) int32. rank is an int32 scalar, or one
// number for each token.
func (p Placement) at(index, rank *graph.Node, local, ranks int) *graph.Node {
	half := local / 2
	switch p {
	case Striped:
		return graph.Add(graph.MulScalar(index, ranks), rank)
	case Zigzag:
		early := graph.Add(index, graph.MulScalar(rank, half))
		late := graph.Add(index, graph.MulScalar(graph.AddScalar(graph.Neg(rank), 2*ranks-2), half))
		return graph.Where(graph.LessThan(index, graph.Const(index.Graph(), int32(half))), early, late)
	}
	return graph.Add(index, graph.MulScalar(rank, local))
}
