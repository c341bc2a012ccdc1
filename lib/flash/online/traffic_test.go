package online_test

import (
	"math"
	"testing"

	"github.com/shardbook/shardbook/lib/flash/online"
)

// Compares the traffic of each function with the sum over the lines of the papers' algorithms.
func TestTraffic(t *testing.T) { heads(t, testTraffic[float64]) }

func testTraffic[F online.Float](t *testing.T, h online.Head[F], queries, keys int) {
	n, s, d, e := int64(queries), int64(keys), int64(h.D), int64(h.E)
	check := func(what string, got online.Traffic, err error, loads, stores int64) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if got.Loads != loads || got.Stores != stores {
			t.Errorf("%s: %d loads and %d stores, want %d and %d", what, got.Loads, got.Stores, loads, stores)
		}
	}
	dout := make([]F, queries*h.E)

	// Dao et al. 2022, algorithm 0: line 1 reads Q and K and writes S, line 2 reads S and writes P, line 3 reads P and
	// V and writes O.
	three, err := online.ThreeStep(h)
	check("three steps", three.Traffic, err, n*d+s*d+2*n*s+s*e, 2*n*s+n*e)
	if want := max(n*d+s*d+n*s, n*s+s*e+n*e); three.Traffic.Fast != want { // of the two matmuls
		t.Errorf("three steps need %d of fast memory, want %d", three.Traffic.Fast, want)
	}
	// Algorithm 3: line 1 reads P and dO and writes dV, line 2 reads dO and V and writes dP, line 3 reads P and dP and
	// writes dS, line 4 reads dS and K and writes dQ, line 5 reads dS and Q and writes dK.
	g, err := online.ThreeStepGradients(h, three, dout)
	check("its gradients", g.Traffic, err, n*s+n*e+n*e+s*e+2*n*s+n*s+s*d+n*s+n*d, s*e+2*n*s+n*d+s*d)

	// The keys that each query sees.
	sees := visible(h, queries, keys)
	var pairs int64
	for i := range queries {
		for j := range keys {
			if sees(i, j) {
				pairs++
			}
		}
	}
	one, err := online.OneLoop(h)
	check("one loop", one.Traffic, err, n*d+pairs*(d+e), n*(e+1))
	once, err := online.DivideOnce(h)
	check("divided once", once.Traffic, err, n*d+pairs*(d+e), n*(e+1))

	for _, tiles := range tilings {
		// The rows of all pairs of tiles in which a query sees a key.
		var pairQueries, pairKeys int64
		for i := 0; i < queries; i += min(tiles.Queries, queries) {
			for j := 0; j < keys; j += min(tiles.Keys, keys) {
				lastQuery, lastKey := min(queries-i, tiles.Queries)+i, min(keys-j, tiles.Keys)+j
				any, seen := false, 0
				for a := i; a < lastQuery; a++ {
					for b := j; b < lastKey; b++ {
						if sees(a, b) {
							any, seen = true, max(seen, b+1-j)
						}
					}
				}
				if any {
					pairQueries += int64(lastQuery - i)
					pairKeys += int64(seen)
				}
			}
		}
		// Dao et al. 2022, algorithm 1: line 2 writes O, l and m; line 6 reads K and V; line 8 reads Q, O, l and m,
		// lines 12 and 13 write O, l and m, for each pair. Here l and m are read and LSE is written at the end.
		byKeys, err := online.KeysOuter(h, tiles)
		check("keys outer", byKeys.Traffic, err, s*(d+e)+pairQueries*(d+e+2)+2*n, n*(e+2)+pairQueries*(e+2)+n)
		// Dao 2023, algorithm 1: line 4 reads Q, line 7 reads K and V for each pair, lines 14 and 15 write O and L.
		byQueries, err := online.QueriesOuter(h, tiles)
		check("queries outer", byQueries.Traffic, err, n*d+pairKeys*(d+e), n*(e+1))
		// Dao 2023, algorithm 2: dQ is written; dO and O are read and D is written; K and V are read; Q, dO, dQ, L and
		// D are read (in the paper also O, which is not used) and dQ is written, for each pair; dK and dV are written.
		g, err := online.TiledGradients(h, byQueries, dout, tiles)
		check("gradients in tiles", g.Traffic, err, 2*n*e+s*(d+e)+pairQueries*(2*d+e+2), n*d+n+pairQueries*d+s*(d+e))
	}
}

// The tiles fit in fast memory, as the functions themselves count it, and larger ones do not.
func TestTiles(t *testing.T) {
	const n = 64
	for _, d := range []int{1, 2, 5, 16} {
		for _, e := range []int{1, 3, 8} {
			h := online.Head[float32]{Q: make([]float32, n*d), K: make([]float32, n*d), V: make([]float32, n*e), D: d,
				E: e}
			f, err := online.OneLoop(h)
			if err != nil {
				t.Fatal(err)
			}
			for _, fast := range []int{1, 7, 12, 31, 64, 100, 333} {
				for _, c := range []struct {
					tiles func(fast, d, e int) (online.Tiles, error)
					more  func(online.Tiles) online.Tiles
					used  func(online.Tiles) (online.Traffic, error)
				}{
					{online.TilesKeysOuter,
						func(t online.Tiles) online.Tiles {
							return online.Tiles{Queries: min(t.Keys+1, d),
								Keys: t.Keys + 1}
						},
						func(t online.Tiles) (online.Traffic, error) {
							f, err := online.KeysOuter(h, t)
							return f.Traffic, err
						}},
					{online.TilesQueriesOuter,
						func(t online.Tiles) online.Tiles {
							return online.Tiles{Queries: t.Queries + 1, Keys: min(t.Queries+1, d)}
						},
						func(t online.Tiles) (online.Traffic, error) {
							f, err := online.QueriesOuter(h, t)
							return f.Traffic, err
						}},
					{online.TilesBackward,
						func(t online.Tiles) online.Tiles {
							return online.Tiles{Queries: min(t.Keys+1, d),
								Keys: t.Keys + 1}
						},
						func(t online.Tiles) (online.Traffic, error) {
							g, err := online.TiledGradients(h, f, make([]float32, n*e), t)
							return g.Traffic, err
						}},
				} {
					tiles, fitErr := c.tiles(fast, d, e)
					if fitErr == nil {
						if used, err := c.used(tiles); err != nil || used.Fast > int64(fast) {
							t.Errorf("%+v use %d of %d, %v", tiles, used.Fast, fast, err)
						}
					}
					if more := c.more(tiles); max(more.Queries, more.Keys) <= n {
						if used, err := c.used(more); err != nil || used.Fast <= int64(fast) {
							t.Errorf("d = %d, e = %d: %+v (%v), but %+v use only %d of %d, %v", d, e, tiles, fitErr,
								more, used.Fast, fast, err)
						}
					}
				}
			}
		}
	}
	for _, c := range []struct{ fast, d, e int }{
		{100, 0, 1}, {100, 1, 0}, {100, -1, -1}, {0, 1, 1}, {-5, 1, 1}, {math.MinInt, 1, 1}, {100, 101, 1},
		{100, 1, 101},
		{math.MaxInt, math.MaxInt, 1}, {math.MaxInt, 1, math.MaxInt}, {8, 4, 4},
	} {
		if tiles, err := online.TilesKeysOuter(c.fast, c.d, c.e); err == nil {
			t.Errorf("%+v: %+v and no error", c, tiles)
		}
	}
	if tiles, err := online.TilesBackward(math.MaxInt, 64, 64); err != nil || tiles.Queries != 64 ||
		tiles.Keys < 1<<16 || tiles.Keys > math.MaxInt/(6*64) {
		t.Errorf("the largest fast memory: %+v, %v", tiles, err)
	}
}
