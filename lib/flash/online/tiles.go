package online

import (
	"fmt"
	"math"
	"sort"
)

// Tiles is the number of queries and keys in fast memory at a time, at least 1 of each.
type Tiles struct{ Queries, Keys int }

// TilesKeysOuter returns the tiles with the most keys for [KeysOuter] that fit in a fast memory of the given number of
// elements. d and e are the elements of a key and of a value. The tiles have at most d queries, so that the scores are
// no larger than the keys. FlashAttention's algorithm 1, line 1, has M/4d keys, which with the scores is a little more
// than M. It returns an error if not even one query and one key fit.
func TilesKeysOuter(fast, d, e int) (Tiles, error) {
	return most(fast, d, e, func(n int) Tiles { return Tiles{Queries: min(n, d), Keys: n} }, forwardSize)
}

// TilesQueriesOuter returns the tiles with the most queries, and at most d keys, for [QueriesOuter].
func TilesQueriesOuter(fast, d, e int) (Tiles, error) {
	return most(fast, d, e, func(n int) Tiles { return Tiles{Queries: n, Keys: min(n, d)} }, forwardSize)
}

// TilesBackward returns the tiles with the most keys, and at most d queries, for [TiledGradients].
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
		return Tiles{}, fmt.Errorf("online: fast is %d elements, d %d and e %d: d and e must be at least 1 and at "+
			"most fast", fast, d, e)
	}
	n := sort.Search(fast/(d+e), func(n int) bool { return size(tiles(n+1), d, e) > fast })
	if n == 0 {
		return Tiles{}, fmt.Errorf("online: a fast memory of %d elements is too small for one query and one key: "+
			"give at least %d", fast, size(tiles(1), d, e))
	}
	return tiles(n), nil
}

// cut limits tiles to the size of the head.
func (p *pass[F]) cut(t Tiles) (Tiles, error) {
	if t.Queries < 1 || t.Keys < 1 {
		return t, fmt.Errorf("online: tiles of %d queries and %d keys: give at least 1 of each", t.Queries, t.Keys)
	}
	return Tiles{min(t.Queries, p.queries), min(t.Keys, p.keys)}, nil
}
