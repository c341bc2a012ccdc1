package online

import (
	"fmt"
	"math"
	"sort"
)

// Tiles says how many queries and keys are in fast memory at a time, each at least 1.
type Tiles struct{ Queries, Keys int }

// TilesKeysOutside returns the tiles of most keys for [KeysOutside] that a fast memory of so many elements holds, with
// keys of d elements and values of e, and at most d queries, whose scores take no more room than the keys do. That is
// FlashAttention's algorithm 1, line 1; it takes M/4d keys, which with the scores is a little more than M, and these
// fit. If not even one query and one key do, that is an error.
func TilesKeysOutside(fast, d, e int) (Tiles, error) {
	return most(fast, d, e, func(n int) Tiles { return Tiles{Queries: min(n, d), Keys: n} }, forwardSize)
}

// TilesQueriesOutside returns the same for [QueriesOutside], with queries and keys exchanged: most queries, and at most
// d keys.
func TilesQueriesOutside(fast, d, e int) (Tiles, error) {
	return most(fast, d, e, func(n int) Tiles { return Tiles{Queries: n, Keys: min(n, d)} }, forwardSize)
}

// TilesBackward returns the same as [TilesKeysOutside] for [TiledGradients]: most keys, and at most d queries.
func TilesBackward(fast, d, e int) (Tiles, error) {
	return most(fast, d, e, func(n int) Tiles { return Tiles{Queries: min(n, d), Keys: n} }, backwardSize)
}

// forwardSize is the fast memory for q, o, m and d; k and v; scores.
func forwardSize(t Tiles, d, e int) int {
	return t.Queries*(d+e+2) + t.Keys*(d+e) + t.Queries*t.Keys
}

// backwardSize is the fast memory for q, dq, do, LSE and Δ; k, dk, v and dv; weights and their gradients.
func backwardSize(t Tiles, d, e int) int {
	return t.Queries*(2*d+e+2) + t.Keys*2*(d+e) + 2*t.Queries*t.Keys
}

// most returns tiles(n) for the largest n that fits.
func most(fast, d, e int, tiles func(n int) Tiles, size func(t Tiles, d, e int) int) (Tiles, error) {
	fast = min(fast, math.MaxInt/8) // so that no size overflows
	if d < 1 || e < 1 || d > fast || e > fast {
		return Tiles{}, fmt.Errorf("online: a fast memory of %d elements for keys of %d and values of %d: "+
			"it must hold some of both, of at least 1 element each", fast, d, e)
	}
	n := sort.Search(fast/(d+e), func(n int) bool { return size(tiles(n+1), d, e) > fast })
	if n == 0 {
		return Tiles{}, fmt.Errorf("online: a fast memory of %d elements does not hold one query and one key: "+
			"make it at least %d", fast, size(tiles(1), d, e))
	}
	return tiles(n), nil
}

// cut makes tiles no larger than the head.
func (p *pass[F]) cut(t Tiles) (Tiles, error) {
	if t.Queries < 1 || t.Keys < 1 {
		return t, fmt.Errorf("online: tiles of %d queries and %d keys: both need at least 1", t.Queries, t.Keys)
	}
	return Tiles{min(t.Queries, p.queries), min(t.Keys, p.keys)}, nil
}
