package online_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

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
	must := func(f online.Forward[F], err error) online.Forward[F] {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	out, lse := online.Reference(wide(h.Q), wide(h.K), wide(h.V), h.D, h.E, float64(h.Scale), visible(h, queries, keys))
	three := must(online.ThreeStep(h))
	same(t, "three steps", three.Out, narrow[F](out), 1)
	one := must(online.OneLoop(h))
	same(t, "one loop", one.Out, three.Out, 1)
	same(t, "its LSE", one.LSE, narrow[F](lse), 1)
	once := must(online.DivideOnce(h))
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
		byQueries := must(online.QueriesOuter(h, tiles))
		same(t, "queries outer", byQueries.Out, once.Out, 1)
		same(t, "its LSE", byQueries.LSE, once.LSE, 1)
		byKeys := must(online.KeysOuter(h, tiles))
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
		f, err := step()
		if err != nil {
			t.Fatal(err)
		}
		same(t, name, f.Out, want, 1)
		var g online.Gradients[float32]
		if f.P != nil {
			g, err = online.ThreeStepGradients(h, f, dout)
		} else {
			g, err = online.TiledGradients(h, f, dout, tiles)
		}
		if err != nil {
			t.Fatal(err)
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
	f, err := online.OneLoop(good)
	if err != nil {
		t.Fatal(err)
	}
	three, err := online.ThreeStep(good)
	if err != nil {
		t.Fatal(err)
	}
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
	var got int
	count := func(err error) {
		if err != nil {
			got++
		}
	}
	_, err := online.ThreeStep(h)
	count(err)
	_, err = online.OneLoop(h)
	count(err)
	_, err = online.DivideOnce(h)
	count(err)
	_, err = online.KeysOuter(h, tiles)
	count(err)
	_, err = online.QueriesOuter(h, tiles)
	count(err)
	_, err = online.ThreeStepGradients(h, f, dout)
	count(err)
	_, err = online.TiledGradients(h, f, dout, tiles)
	count(err)
	if got != want {
		t.Errorf("%d functions fail for %+v with %+v, want %d", got, h, tiles, want)
	}
}
