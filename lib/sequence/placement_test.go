package sequence_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/shardbook/shardbook/lib/sequence"
)

// Eleven tokens on three ranks; positions from 11 on are padding.
func ExamplePlacement_Positions() {
	for _, p := range sequence.Placements() {
		fmt.Print(p, ":")
		for rank := range 3 {
			fmt.Print(" ", p.Positions(11, 3, rank))
		}
		fmt.Println()
	}
	// Output:
	// contiguous: [0 1 2 3] [4 5 6 7] [8 9 10 11]
	// striped: [0 3 6 9] [1 4 7 10] [2 5 8 11]
	// zigzag: [0 1 10 11] [2 3 8 9] [4 5 6 7]
}

// The balance of a ring of eight with a causal mask.
func ExampleBalance() {
	for _, p := range sequence.Placements() {
		fmt.Printf("%s: %.2f%%\n", p, 100*sequence.Balance(p.Work(1024, 8, 128)))
	}
	fmt.Printf("zigzag, smaller blocks: %.2f%%\n", 100*sequence.Balance(sequence.Zigzag.Work(1024, 8, 32)))
	// Output:
	// contiguous: 56.25%
	// striped: 100.00%
	// zigzag: 100.00%
	// zigzag, smaller blocks: 100.00%
}

// Every token is on exactly one rank, and every rank has the same number.
func TestPositions(t *testing.T) {
	for _, p := range append(sequence.Placements(), "") {
		for ranks := 1; ranks <= 8; ranks++ {
			for tokens := 1; tokens <= 50; tokens++ {
				local, seen := p.Local(tokens, ranks), []int{}
				for rank := range ranks {
					at := p.Positions(tokens, ranks, rank)
					if len(at) != local || !slices.IsSorted(at) {
						t.Fatalf("%s: rank %d of %d has %v of %d tokens, want %d in order", p, rank, ranks, at, tokens,
							local)
					}
					seen = append(seen, at...)
				}
				slices.Sort(seen)
				for i, at := range seen {
					if at != i {
						t.Fatalf("%s: %d tokens on %d ranks are at %v", p, tokens, ranks, seen)
					}
				}
				step := ranks
				if p == sequence.Zigzag {
					step = 2 * ranks
				}
				if len(seen) < tokens || len(seen) >= tokens+step {
					t.Fatalf("%s: %d tokens on %d ranks are padded to %d", p, tokens, ranks, len(seen))
				}
			}
		}
	}
}

// Work and Visible are the counts over all pairs of tokens.
func TestWork(t *testing.T) {
	for _, p := range sequence.Placements() {
		for _, c := range [][3]int{{24, 4, 2}, {23, 3, 3}, {17, 5, 1}, {16, 2, 100}} {
			tokens, ranks, block := c[0], c[1], c[2]
			work := p.Work(tokens, ranks, block)
			for hop := range ranks {
				for rank := range ranks {
					queries, keys := p.Positions(tokens, ranks, rank),
						p.Positions(tokens, ranks, (rank-hop+ranks)%ranks)
					blocks, pairs := map[[2]int]bool{}, 0
					for i, q := range queries {
						for j, k := range keys {
							if k <= q && q < tokens {
								blocks[[2]int{i / block, j / block}] = true
								pairs++
							}
						}
					}
					if work[hop][rank] != len(blocks) {
						t.Errorf("%s %v: %d matmuls of rank %d in hop %d, want %d", p, c, work[hop][rank], rank, hop,
							len(blocks))
					}
					want := float64(pairs) / float64(len(queries)*len(keys))
					if got := p.Visible(tokens, ranks, rank, hop); math.Abs(got-want) > 1e-15 {
						t.Errorf("%s %v: rank %d sees %g in hop %d, want %g", p, c, rank, got, hop, want)
					}
				}
			}
		}
	}
}

// With one block on each rank, Contiguous has a balance of (n+1)/2n (Striped Attention, Brandon et al. 2023, §2.3).
// Striped and Zigzag have at least 0.95, with 128 tokens on each rank in blocks of 8 and of 1.
func TestBalance(t *testing.T) {
	for n := 2; n <= 8; n++ {
		tokens := 128 * n
		if got, want := sequence.Balance(sequence.Contiguous.Work(tokens, n, 128)),
			float64(n+1)/float64(2*n); got != want {
			t.Errorf("contiguous on %d ranks: balance %g, want %g", n, got, want)
		}
		for _, p := range []sequence.Placement{sequence.Striped, sequence.Zigzag} {
			for _, block := range []int{8, 1} {
				if got := sequence.Balance(p.Work(tokens, n, block)); got < 0.95 || got > 1 {
					t.Errorf("%s on %d ranks in blocks of %d: balance %g", p, n, block, got)
				}
			}
		}
	}
	if got := sequence.Balance([][]int{{0, 0}}); got != 1 {
		t.Errorf("balance of no work is %g", got)
	}
}

func TestPanics(t *testing.T) {
	for name, f := range map[string]func(){
		"sequence: 0 tokens on 2 ranks: choose at least one of each": func() { sequence.Striped.Local(0, 2) },
		"sequence: rank 2 of 2: choose 0 to 1":                       func() { sequence.Striped.Positions(4, 2, 2) },
		"sequence: blocks of 0 tokens: choose at least 1":            func() { sequence.Zigzag.Work(4, 2, 0) },
		"sequence: Gather is set without Ring: choose a mesh axis for Ring, or unset Gather": func() {
			sequence.Group{Gather: true}.Traffic(sequence.Layer{}, 1, 1)
		},
	} {
		func() {
			defer func() {
				if err, ok := recover().(error); !ok || err.Error() != name {
					t.Errorf("panics with %v, want %s", err, name)
				}
			}()
			f()
		}()
	}
}
