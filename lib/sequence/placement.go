package sequence

import (
	"fmt"
	"slices"

	"github.com/gomlx/gomlx/core/graph"
)

// Placement says which tokens of a sequence each rank of a ring has.
type Placement string

const (
	// Contiguous gives rank r the r-th run of tokens. With a causal mask the last rank has the most to do, and the ring
	// waits for it at every hop. An empty Placement is Contiguous.
	Contiguous Placement = "contiguous"

	// Striped gives rank r the tokens r, r+P, r+2P, … of P ranks: Striped Attention (Brandon et al. 2023,
	// arXiv:2311.09431, §3). At every hop every rank sees half of the pairs, but for the diagonal.
	Striped Placement = "striped"

	// Zigzag cuts the sequence into 2P runs, of which rank r has those numbered r and 2P−1−r: one early and one late,
	// which together see equally many keys on every rank (Llama Team 2024, arXiv:2407.21783, §3.3.2).
	Zigzag Placement = "zigzag"
)

// Placements returns all of them.
func Placements() []Placement { return []Placement{Contiguous, Striped, Zigzag} }

// Validate returns an error for a placement that there is not.
func (p Placement) Validate() error {
	if p != "" && !slices.Contains(Placements(), p) {
		return fmt.Errorf("sequence: placement %q: choose %q, %q or %q", string(p), string(Contiguous), string(Striped),
			string(Zigzag))
	}
	return nil
}

// Local returns how many of so many tokens each of the ranks has, padding included: ⌈T/P⌉, and for Zigzag 2·⌈T/2P⌉. It
// panics unless there are tokens and ranks.
func (p Placement) Local(tokens, ranks int) int {
	if tokens < 1 || ranks < 1 {
		panic(fmt.Errorf("sequence: %d tokens on %d ranks: choose at least one of each", tokens, ranks))
	}
	runs := p.runs()
	return runs * ceilDiv(tokens, runs*ranks)
}

// runs returns how many runs a rank's tokens are cut into, which are of equal length.
func (p Placement) runs() int {
	if p == Zigzag {
		return 2
	}
	return 1
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

// Positions returns those of a rank's tokens out of a sequence of so many, in the order in which the rank has them.
// Every rank has Local of them; positions from tokens on are padding, at the end of the sequence. It panics if there is
// no such rank or where Local does.
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

// at is Positions in a graph: those of the tokens numbered index, (N) int32, of the local ones of a rank, int32, which
// is a scalar or one for each token.
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
