package online_test

import (
	"fmt"
	"log"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/flash/online"
)

// shapes of heads: a single query, more and fewer queries than keys, none.
var shapes = []struct{ queries, keys, d, e int }{
	{1, 1, 1, 1}, {1, 9, 3, 2}, {12, 12, 4, 4}, {13, 29, 5, 3}, {29, 13, 2, 6}, {3, 0, 2, 2}, {0, 3, 2, 2},
}

var tilings = []online.Tiles{{1, 1}, {1, 4}, {3, 1}, {4, 4}, {5, 7}, {16, 2}, {math.MaxInt, math.MaxInt}}

func heads[F online.Float](t *testing.T, check func(t *testing.T, h online.Head[F], queries, keys int)) {
	rng := rand.New(rand.NewPCG(11, 12))
	for _, s := range shapes {
		for _, causal := range []bool{false, true} {
			h := online.Head[F]{
				Q: normal[F](rng, s.queries*s.d, 1), K: normal[F](rng, s.keys*s.d, 1), V: normal[F](rng, s.keys*s.e, 1),
				D: s.d, E: s.e, Scale: F(1 / math.Sqrt(float64(s.d))), Causal: causal,
			}
			t.Run(fmt.Sprintf("%T/%d×%d,causal=%v", h.Scale, s.queries, s.keys, causal), func(t *testing.T) {
				check(t, h, s.queries, s.keys)
			})
		}
	}
}

func wide[F online.Float](x []F) []float64 {
	y := make([]float64, len(x))
	for i := range x {
		y[i] = float64(x[i])
	}
	return y
}

func narrow[F online.Float](x []float64) []F {
	y := make([]F, len(x))
	for i := range x {
		y[i] = F(x[i])
	}
	return y
}

// visible reports whether query i of a head sees key j.
func visible[F online.Float](h online.Head[F], queries, keys int) func(i, j int) bool {
	return func(i, j int) bool { return !h.Causal || queries-1-i <= keys-1-j }
}

// Compares each function with the one before, and the first with the reference.
func TestForward(t *testing.T) {
	heads(t, testForward[float32])
	heads(t, testForward[float64])
}

func testForward[F online.Float](t *testing.T, h online.Head[F], queries, keys int) {
	out, lse := online.Reference(wide(h.Q), wide(h.K), wide(h.V), h.D, h.E, float64(h.Scale), visible(h, queries, keys))
	three := must.Value(online.ThreeStep(h))
	same(t, "three steps", three.Out, narrow[F](out), 1)
	one := must.Value(online.OneLoop(h))
	same(t, "one loop", one.Out, three.Out, 1)
	same(t, "its LSE", one.LSE, narrow[F](lse), 1)
	once := must.Value(online.DivideOnce(h))
	same(t, "divided once", once.Out, one.Out, 1)
	same(t, "its LSE", once.LSE, one.LSE, 0)

	if three.LSE != nil || len(three.P) != queries*keys || one.P != nil || once.P != nil {
		t.Errorf("three steps save %d weights and %d LSEs; one loop %d weights; divided once %d", len(three.P),
			len(three.LSE), len(one.P), len(once.P))
	}
	for i := range queries { // weights sum to 1 if there are any
		var sum, want F
		for _, p := range three.P[i*keys : (i+1)*keys] {
			sum += p
		}
		if lse[i] > math.Inf(-1) {
			want = 1
		}
		same(t, "sum of weights", []F{sum}, []F{want}, 1)
	}
	for _, tiles := range tilings {
		byQueries := must.Value(online.QueriesOuter(h, tiles))
		same(t, "queries outer", byQueries.Out, once.Out, 1)
		same(t, "its LSE", byQueries.LSE, once.LSE, 1)
		byKeys := must.Value(online.KeysOuter(h, tiles))
		same(t, "keys outer", byKeys.Out, byQueries.Out, 1)
		same(t, "its LSE", byKeys.LSE, byQueries.LSE, 1)
	}
}

// Scores of ±10⁴ in float32 give no NaN, and the largest score has all the weight.
func TestHugeScores(t *testing.T) {
	h := online.Head[float32]{
		Q: []float32{100, -100, 0}, K: []float32{-100, 100, 0, 100}, V: []float32{1, 2, 3, 4}, D: 1, E: 1, Scale: 1,
	}
	want := []float32{3, 1, 2.5} // the mean of 2 and 4; 1; the mean of all
	tiles := online.Tiles{Queries: 2, Keys: 3}
	dout := []float32{1, 1, 1}
	for name, step := range map[string]func() (online.Forward[float32], error){
		"three steps":   func() (online.Forward[float32], error) { return online.ThreeStep(h) },
		"one loop":      func() (online.Forward[float32], error) { return online.OneLoop(h) },
		"divided once":  func() (online.Forward[float32], error) { return online.DivideOnce(h) },
		"keys outer":    func() (online.Forward[float32], error) { return online.KeysOuter(h, tiles) },
		"queries outer": func() (online.Forward[float32], error) { return online.QueriesOuter(h, tiles) },
	} {
		f := must.Value(step())
		same(t, name, f.Out, want, 1)
		var g online.Gradients[float32]
		if f.P != nil {
			g = must.Value(online.ThreeStepGradients(h, f, dout))
		} else {
			g = must.Value(online.TiledGradients(h, f, dout, tiles))
		}
		dq, dk, dv := online.ReferenceGradients(wide(h.Q), wide(h.K), wide(h.V), wide(dout), 1, 1, 1, nil)
		// The first query's weights have an error of half a step of float32 at 10⁴, 5·10⁻⁴, and the keys are 100.
		same(t, name+": dq", g.DQ, narrow[float32](dq), 0.1/bound[float32]())
		same(t, name+": dk", g.DK, narrow[float32](dk), 2e-3/bound[float32]())
		same(t, name+": dv", g.DV, narrow[float32](dv), 1e-3/bound[float32]())
	}
}

func TestBadHeads(t *testing.T) {
	tiles := online.Tiles{Queries: 2, Keys: 2}
	for _, c := range []struct{ q, k, v, d, e int }{
		{2, 2, 2, 0, 1}, {2, 2, 2, 1, 0}, {2, 2, 2, -1, 1}, {3, 4, 2, 2, 1}, {2, 3, 2, 2, 1}, {2, 2, 3, 2, 2},
		{2, 2, 3, 1, 1},
	} {
		h := online.Head[float32]{Q: make([]float32, c.q), K: make([]float32, c.k), V: make([]float32, c.v), D: c.d,
			E: c.e}
		fails(t, h, tiles, online.Forward[float32]{}, nil, 7)
	}
	good := online.Head[float32]{Q: make([]float32, 2), K: make([]float32, 4), V: make([]float32, 2), D: 2, E: 1}
	f := must.Value(online.OneLoop(good))
	three := must.Value(online.ThreeStep(good))
	fails(t, good, online.Tiles{Queries: 0, Keys: 1}, f, make([]float32, 1), 4) // ThreeStepGradients: f has no weights
	fails(t, good, online.Tiles{Queries: 1, Keys: -1}, f, make([]float32, 1), 4)
	fails(t, good, tiles, three, make([]float32, 2), 2)               // another dOut
	fails(t, good, tiles, three, make([]float32, 1), 1)               // no LSE
	fails(t, good, tiles, online.Forward[float32]{}, []float32{1}, 2) // nothing
	fails(t, good, tiles, online.Forward[float32]{LSE: f.LSE}, []float32{1}, 2)
}

// fails counts the functions that return an error.
func fails(t *testing.T, h online.Head[float32], tiles online.Tiles, f online.Forward[float32], dout []float32,
	want int) {
	t.Helper()
	var errs [7]error
	_, errs[0] = online.ThreeStep(h)
	_, errs[1] = online.OneLoop(h)
	_, errs[2] = online.DivideOnce(h)
	_, errs[3] = online.KeysOuter(h, tiles)
	_, errs[4] = online.QueriesOuter(h, tiles)
	_, errs[5] = online.ThreeStepGradients(h, f, dout)
	_, errs[6] = online.TiledGradients(h, f, dout, tiles)
	got := len(slices.DeleteFunc(errs[:], func(err error) bool { return err == nil }))
	if got != want {
		t.Errorf("%d functions fail for %+v with %+v, want %d", got, h, tiles, want)
	}
}

// Compares gradients from saved weights with the reference, and gradients from log-sum-exps with these.
func TestGradients(t *testing.T) {
	heads(t, testGradients[float32])
	heads(t, testGradients[float64])
}

func testGradients[F online.Float](t *testing.T, h online.Head[F], queries, keys int) {
	dout := normal[F](rand.New(rand.NewPCG(15, 16)), queries*h.E, 1)
	three := must.Value(online.ThreeStep(h))
	want := must.Value(online.ThreeStepGradients(h, three, dout))
	dq, dk, dv := online.ReferenceGradients(wide(h.Q), wide(h.K), wide(h.V), wide(dout), h.D, h.E, float64(h.Scale),
		visible(h, queries, keys))
	same(t, "dQ", want.DQ, narrow[F](dq), 1)
	same(t, "dK", want.DK, narrow[F](dk), 1)
	same(t, "dV", want.DV, narrow[F](dv), 1)

	for _, tiles := range tilings {
		forward := must.Value(online.QueriesOuter(h, tiles))
		got := must.Value(online.TiledGradients(h, forward, dout, tiles))
		same(t, "dQ in tiles", got.DQ, want.DQ, 1)
		same(t, "dK in tiles", got.DK, want.DK, 1)
		same(t, "dV in tiles", got.DV, want.DV, 1)
	}
}

// By hand: scores 0 and log 3. The second query sees only the first key, the third query none.
func TestReference(t *testing.T) {
	visible := func(i, j int) bool { return i == 0 || i == 1 && j == 0 }
	q, k, v := []float64{2, 2, 2}, []float64{0, math.Log(3)}, []float64{0, 4, 8, 0}
	out, lse := online.Reference(q, k, v, 1, 2, 0.5, visible)
	same(t, "out", out, []float64{6, 1, 0, 4, 0, 0}, 1)
	same(t, "lse", lse, []float64{math.Log(4), 0, math.Inf(-1)}, 1)

	// The first query has weights (¼, ¾), dP = (4, 8), sum 7, dS = (−¾, ¾); the others contribute only to dV.
	dq, dk, dv := online.ReferenceGradients(q, k, v, []float64{1, 1, 1, 1, 9, 9}, 1, 2, 0.5, visible)
	same(t, "dq", dq, []float64{0.5 * 0.75 * math.Log(3), 0, 0}, 1)
	same(t, "dk", dk, []float64{-0.75, 0.75}, 1)
	same(t, "dv", dv, []float64{1.25, 1.25, 0.75, 0.75}, 1)

	out, lse = online.Reference([]float64{1e4}, []float64{1e4, -1e4}, []float64{3, 5}, 1, 1, 1, nil)
	same(t, "huge", append(out, lse...), []float64{3, 1e8}, 1)
}

// Compares gradients with finite differences of Σ dout·out.
func TestReferenceGradients(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	const queries, keys, d, e = 3, 5, 2, 4
	q, k, v := normal[float64](rng, queries*d, 1), normal[float64](rng, keys*d, 1), normal[float64](rng, keys*e, 1)
	dout := normal[float64](rng, queries*e, 1)
	visible := func(i, j int) bool { return i > 0 && (i+j)%3 != 0 }
	loss := func() (sum float64) {
		out, _ := online.Reference(q, k, v, d, e, 0.7, visible)
		for i := range out {
			sum += dout[i] * out[i]
		}
		return sum
	}
	dq, dk, dv := online.ReferenceGradients(q, k, v, dout, d, e, 0.7, visible)
	for _, c := range []struct{ x, dx []float64 }{{q, dq}, {k, dk}, {v, dv}} {
		for i := range c.x {
			const h = 1e-5 // errors of about h² and 10⁻¹⁶/h
			at := c.x[i]
			c.x[i] = at + h
			up := loss()
			c.x[i] = at - h
			down := loss()
			c.x[i] = at
			if got := (up - down) / (2 * h); math.Abs(got-c.dx[i]) > 1e-8 {
				t.Errorf("element %d of %d: gradient %v, difference %v", i, len(c.x), c.dx[i], got)
			}
		}
	}
}

func TestReferenceSizes(t *testing.T) {
	for _, c := range []struct{ q, k, v, dout, d, e int }{
		{2, 2, 2, 2, 0, 1}, {2, 2, 2, 2, 1, 0}, {2, 2, 2, 2, -1, -1}, // rows of nothing
		{3, 4, 2, 1, 2, 1}, {2, 3, 2, 1, 2, 1}, {2, 2, 3, 2, 2, 2}, // no whole rows
		{2, 2, 3, 2, 1, 1}, // 2 keys, 3 values
	} {
		q, k, v := make([]float64, c.q), make([]float64, c.k), make([]float64, c.v)
		if out, lse := online.Reference(q, k, v, c.d, c.e, 1, nil); out != nil || lse != nil {
			t.Errorf("%+v: %v, %v, want nil", c, out, lse)
		}
		dq, dk, dv := online.ReferenceGradients(q, k, v, make([]float64, c.dout), c.d, c.e, 1, nil)
		if dq != nil || dk != nil || dv != nil {
			t.Errorf("%+v: gradients %v, %v, %v, want nil", c, dq, dk, dv)
		}
	}
	one := []float64{1}
	if dq, _, _ := online.ReferenceGradients(one, one, one, []float64{1, 2}, 1, 1, 1, nil); dq != nil {
		t.Errorf("gradients %v for a dout of another size, want nil", dq)
	}
	out, lse := online.Reference(one, nil, nil, 1, 1, 1, nil)
	same(t, "no keys", append(out, lse...), []float64{0, math.Inf(-1)}, 0)
	if out, lse := online.Reference(nil, one, one, 1, 1, 1, nil); out == nil || lse == nil || len(out)+len(lse) > 0 {
		t.Errorf("no queries: %v, %v, want none", out, lse)
	}
}

// Compares the traffic of each function with the sum over the lines of the papers' algorithms.
func TestTraffic(t *testing.T) { heads(t, testTraffic[float64]) }

func testTraffic[F online.Float](t *testing.T, h online.Head[F], queries, keys int) {
	n, s, d, e := int64(queries), int64(keys), int64(h.D), int64(h.E)
	check := func(what string, got online.Traffic, loads, stores int64) {
		t.Helper()
		if got.Loads != loads || got.Stores != stores {
			t.Errorf("%s: %d loads and %d stores, want %d and %d", what, got.Loads, got.Stores, loads, stores)
		}
	}
	dout := make([]F, queries*h.E)

	// Dao et al. 2022, algorithm 0: line 1 reads Q and K and writes S, line 2 reads S and writes P, line 3 reads P and
	// V and writes O.
	three := must.Value(online.ThreeStep(h))
	check("three steps", three.Traffic, n*d+s*d+2*n*s+s*e, 2*n*s+n*e)
	if want := max(n*d+s*d+n*s, n*s+s*e+n*e); three.Traffic.Fast != want { // of the two matmuls
		t.Errorf("three steps need %d of fast memory, want %d", three.Traffic.Fast, want)
	}
	// Algorithm 3: line 1 reads P and dO and writes dV, line 2 reads dO and V and writes dP, line 3 reads P and dP and
	// writes dS, line 4 reads dS and K and writes dQ, line 5 reads dS and Q and writes dK.
	g := must.Value(online.ThreeStepGradients(h, three, dout))
	check("its gradients", g.Traffic, n*s+n*e+n*e+s*e+2*n*s+n*s+s*d+n*s+n*d, s*e+2*n*s+n*d+s*d)

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
	one := must.Value(online.OneLoop(h))
	check("one loop", one.Traffic, n*d+pairs*(d+e), n*(e+1))
	once := must.Value(online.DivideOnce(h))
	check("divided once", once.Traffic, n*d+pairs*(d+e), n*(e+1))

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
		byKeys := must.Value(online.KeysOuter(h, tiles))
		check("keys outer", byKeys.Traffic, s*(d+e)+pairQueries*(d+e+2)+2*n, n*(e+2)+pairQueries*(e+2)+n)
		// Dao 2023, algorithm 1: line 4 reads Q, line 7 reads K and V for each pair, lines 14 and 15 write O and L.
		byQueries := must.Value(online.QueriesOuter(h, tiles))
		check("queries outer", byQueries.Traffic, n*d+pairKeys*(d+e), n*(e+1))
		// Dao 2023, algorithm 2: dQ is written; dO and O are read and D is written; K and V are read; Q, dO, dQ, L and
		// D are read (in the paper also O, which is not used) and dQ is written, for each pair; dK and dV are written.
		g := must.Value(online.TiledGradients(h, byQueries, dout, tiles))
		check("gradients in tiles", g.Traffic, 2*n*e+s*(d+e)+pairQueries*(2*d+e+2), n*d+n+pairQueries*d+s*(d+e))
	}
}

// The tiles fit in fast memory, as the functions themselves count it, and larger ones do not.
func TestTiles(t *testing.T) {
	const n = 64
	for _, d := range []int{1, 2, 5, 16} {
		for _, e := range []int{1, 3, 8} {
			h := online.Head[float32]{Q: make([]float32, n*d), K: make([]float32, n*d), V: make([]float32, n*e), D: d,
				E: e}
			f := must.Value(online.OneLoop(h))
			byKeys := func(t online.Tiles) online.Tiles {
				return online.Tiles{Queries: min(t.Keys+1, d), Keys: t.Keys + 1}
			}
			byQueries := func(t online.Tiles) online.Tiles {
				return online.Tiles{Queries: t.Queries + 1, Keys: min(t.Queries+1, d)}
			}
			for _, fast := range []int{1, 7, 12, 31, 64, 100, 333} {
				for _, c := range []struct {
					tiles func(fast, d, e int) (online.Tiles, error)
					more  func(online.Tiles) online.Tiles
					used  func(online.Tiles) online.Traffic
				}{
					{online.TilesKeysOuter, byKeys, func(t online.Tiles) online.Traffic {
						return must.Value(online.KeysOuter(h, t)).Traffic
					}},
					{online.TilesQueriesOuter, byQueries, func(t online.Tiles) online.Traffic {
						return must.Value(online.QueriesOuter(h, t)).Traffic
					}},
					{online.TilesBackward, byKeys, func(t online.Tiles) online.Traffic {
						return must.Value(online.TiledGradients(h, f, make([]float32, n*e), t)).Traffic
					}},
				} {
					tiles, fitErr := c.tiles(fast, d, e)
					if fitErr == nil && c.used(tiles).Fast > int64(fast) {
						t.Errorf("%+v use %d of %d", tiles, c.used(tiles).Fast, fast)
					}
					more := c.more(tiles)
					if max(more.Queries, more.Keys) <= n && c.used(more).Fast <= int64(fast) {
						t.Errorf("d = %d, e = %d: %+v (%v), but %+v use only %d of %d", d, e, tiles, fitErr, more,
							c.used(more).Fast, fast)
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

// Two devices have half of the keys each. They exchange m, d and o.
func ExamplePartial_Merge() {
	one := must.Value(online.Attend([]float64{0, math.Log(2)}, []float64{7, 0, 0, 7}, 2))
	other := must.Value(online.Attend([]float64{math.Log(4)}, []float64{7, 7}, 2))
	both := must.Value(one.Merge(other))
	fmt.Printf("%.0f %.4f\n", both.Output(), both.State.LogSumExp())
	// Output: [5 6] 1.9459
}

// The traffic and the memory of each function, for 512 tokens.
func ExampleQueriesOuter() {
	const n, d = 512, 16
	h := online.Head[float32]{
		Q: make([]float32, n*d), K: make([]float32, n*d), V: make([]float32, n*d), D: d, E: d, Scale: 0.25,
	}
	for i := range h.Q {
		h.Q[i], h.K[i], h.V[i] = float32(i%7), float32(i%5), float32(i%3)
	}
	report := func(step string, f online.Forward[float32], err error) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%-16s moves %7d, needs %6d, saves %6d\n", step, f.Traffic.Moved(), f.Traffic.Fast,
			len(f.P)+len(f.LSE))
	}
	f, err := online.ThreeStep(h)
	report("three steps", f, err)
	f, err = online.OneLoop(h)
	report("one loop", f, err)

	const fast = 4096 // elements
	tiles := must.Value(online.TilesKeysOuter(fast, d, d))
	f, err = online.KeysOuter(h, tiles)
	report("keys outer", f, err)
	tiles = must.Value(online.TilesQueriesOuter(fast, d, d))
	f, err = online.QueriesOuter(h, tiles)
	report("queries outer", f, err)
	// Output:
	// three steps      moves 1081344, needs 278528, saves 262144
	// one loop         moves 8405504, needs     64, saves    512
	// keys outer       moves  213504, needs   4096, saves    512
	// queries outer    moves  147968, needs   4062, saves    512
}
