package sequence

import (
	"fmt"
	"slices"

	"github.com/gomlx/gomlx/core/graph"
)

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
