package online_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/flash/online"
)

// bound is the largest difference of two computations of a number of about 1: some hundred roundings.
func bound[F online.Float]() float64 {
	if F(1)+1e-10 == 1 {
		return 2e-5
	}
	return 1e-13
}

// same compares two arrays, each element within a number of bounds.
func same[F online.Float](t *testing.T, what string, got, want []F, bounds float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d elements, want %d", what, len(got), len(want))
	}
	for i := range got {
		g, w := float64(got[i]), float64(want[i])
		if g == w { // also for infinities
			continue
		}
		if !(math.Abs(g-w) <= bounds*bound[F]()*max(1, math.Abs(w))) {
			t.Fatalf("%s: element %d is %v, want %v", what, i, got[i], want[i])
		}
	}
}

func normal[F online.Float](rng *rand.Rand, n int, size float64) []F {
	x := make([]F, n)
	for i := range x {
		x[i] = F(size * rng.NormFloat64())
	}
	return x
}

func TestSoftmax(t *testing.T) {
	t.Run("float32", testSoftmax[float32])
	t.Run("float64", testSoftmax[float64])
}

func testSoftmax[F online.Float](t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, 2, 17, 300} {
		for _, size := range []float64{0, 0.1, 1, 10} { // up to about e^40, which float32 has
			x := normal[F](rng, n, size)
			unsafe, m1 := online.Unsafe(x)
			threePass, m2 := online.ThreePass(x)
			twoPass, m3 := online.Online(x)
			resident, m4 := online.Resident(x)
			same(t, "three passes", threePass, unsafe, 1)
			same(t, "online", twoPass, threePass, 1)
			same(t, "resident", resident, twoPass, 1)

			// Milakov & Gimelshein 2018, §2 and §3: 3, 4 and 3 accesses per element, one of them a store.
			for i, c := range []struct{ got, want online.Traffic }{
				{m1, online.Traffic{Loads: 2 * int64(n), Stores: int64(n)}},
				{m2, online.Traffic{Loads: 3 * int64(n), Stores: int64(n)}},
				{m3, online.Traffic{Loads: 2 * int64(n), Stores: int64(n)}},
				{m4, online.Traffic{Loads: int64(n), Stores: int64(n), Fast: int64(n)}},
			} {
				if c.got != c.want || c.got.Moved() != c.want.Loads+c.want.Stores {
					t.Errorf("n = %d: softmax %d moves %+v, want %+v", n, i+1, c.got, c.want)
				}
			}
		}
	}
}

// Numbers for which e^x overflows.
func TestExtremes(t *testing.T) {
	t.Run("float32", testExtremes[float32])
	t.Run("float64", testExtremes[float64])
}

func testExtremes[F online.Float](t *testing.T) {
	inf := F(math.Inf(1))
	safe := map[string]func([]F) ([]F, online.Traffic){
		"ThreePass": online.ThreePass[F], "Online": online.Online[F], "Resident": online.Resident[F],
	}
	for _, c := range []struct {
		name    string
		x, want []F
	}{
		{"huge", []F{1e4, -1e4, 1e4, 0}, []F{0.5, 0, 0.5, 0}},
		{"low", []F{-1e4, -1e4}, []F{0.5, 0.5}},
		{"constant", slices.Repeat([]F{-3e4}, 8), slices.Repeat([]F{0.125}, 8)},
		{"largest", []F{3e38, -3e38}, []F{1, 0}},
		{"masked", []F{-inf, 2, -inf, 2, -inf}, []F{0, 0.5, 0, 0.5, 0}},
		{"all masked", []F{-inf, -inf}, []F{0, 0}},
	} {
		for name, softmax := range safe {
			got, _ := softmax(c.x)
			same(t, name+" of "+c.name, got, c.want, 1)
		}
	}
	for _, x := range [][]F{{1e4, 0}, {-1e4, -1e4}, {-inf}} {
		if got, _ := online.Unsafe(x); got[0] == got[0] {
			t.Errorf("Unsafe(%v) = %v, want NaN", x, got)
		}
	}
	nan := F(math.NaN())
	for _, x := range [][]F{{inf, 0}, {0, inf}, {inf, inf}, {nan, 0}, {0, nan}, {-inf, nan}} {
		for name, softmax := range safe {
			if got, _ := softmax(x); got[0] == got[0] && got[1] == got[1] {
				t.Errorf("%s(%v) = %v, want NaN", name, x, got)
			}
		}
	}
}

// states returns a random state of 0 to 3 numbers, some of them extreme.
func states[F online.Float](rng *rand.Rand) online.State[F] {
	s := online.Empty[F]()
	for range rng.IntN(4) {
		x := F(rng.NormFloat64())
		switch rng.IntN(4) {
		case 0:
			x *= 1e4
		case 1:
			x = F(math.Inf(-1))
		}
		s = s.Add(x)
	}
	return s
}

func TestStates(t *testing.T) {
	t.Run("float32", testStates[float32])
	t.Run("float64", testStates[float64])
}

func testStates[F online.Float](t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		a, b, c := states[F](rng), states[F](rng), states[F](rng)
		if a.Merge(b) != b.Merge(a) {
			t.Fatalf("%v and %v do not commute: %v, %v", a, b, a.Merge(b), b.Merge(a))
		}
		if e := online.Empty[F](); a.Merge(e) != a || e.Merge(a) != a {
			t.Fatalf("%v merged with Empty is %v and %v", a, a.Merge(e), e.Merge(a))
		}
		left, right := a.Merge(b).Merge(c), a.Merge(b.Merge(c))
		same(t, "associativity", []F{left.M, left.D}, []F{right.M, right.D}, 1)
	}
}

// Compares the states of a trace with sums over all numbers so far. d cannot overflow, since no number adds more than
// 1.
func TestTrace(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, size := range []float64{1, 100, 1e4, 1e300} {
		x := normal[float64](rng, 60, size)
		x[0], x[7] = math.Inf(-1), math.Inf(-1)
		trace := online.Trace(x)
		if len(trace) != len(x) || trace[0] != online.Empty[float64]() {
			t.Fatalf("%d states of %d numbers, the first %v", len(trace), len(x), trace[0])
		}
		for i, s := range trace[1:] {
			m, d := math.Inf(-1), 0.
			for _, y := range x[:i+2] {
				m = max(m, y)
			}
			for _, y := range x[:i+2] {
				d += math.Exp(y - m)
			}
			same(t, "state", []float64{s.M, s.D, s.LogSumExp()}, []float64{m, d, m + math.Log(d)}, 1)
			if s.D < 1 || s.D > float64(i+2) {
				t.Errorf("d = %v after %d numbers", s.D, i+2)
			}
		}
	}
	if got := online.Empty[float64]().LogSumExp(); !math.IsInf(got, -1) {
		t.Errorf("the log-sum-exp of Empty is %v, want -Inf", got)
	}
}

func flat(p online.Partial[float64]) []float64 {
	return append([]float64{p.State.M, p.State.D}, p.O...)
}

// Partial results merge in any order and tree, and give attention over all keys.
func TestMergePartials(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	empty := must.Value(online.Attend[float64](nil, nil, 3))
	for range 1000 {
		var x, v []float64 // of all parts
		random := func() online.Partial[float64] {
			n := rng.IntN(4)
			scores := normal[float64](rng, n, math.Pow(10, float64(rng.IntN(5))))
			if n > 1 {
				scores[0] = math.Inf(-1)
			}
			values := normal[float64](rng, n*3, 1)
			x, v = append(x, scores...), append(v, values...)
			return must.Value(online.Attend(scores, values, 3))
		}
		a, b, c := random(), random(), random()
		same(t, "commuted", flat(must.Value(a.Merge(b))), flat(must.Value(b.Merge(a))), 0)
		same(t, "with nothing", flat(must.Value(a.Merge(empty))), flat(a), 0)
		left, right := must.Value(must.Value(a.Merge(b)).Merge(c)), must.Value(a.Merge(must.Value(b.Merge(c))))
		same(t, "associated", flat(left), flat(right), 1)
		same(t, "all", flat(left), flat(must.Value(online.Attend(x, v, 3))), 1)
		softmax, _ := online.ThreePass(x)
		want := make([]float64, 3)
		for i, v := range v {
			want[i%3] += softmax[i/3] * v
		}
		same(t, "output", left.Output(), want, 1)
	}
	same(t, "the output of nothing", empty.Output(), []float64{0, 0, 0}, 0)
}

// Output and Merge do not change their operands.
func TestPartialsUnchanged(t *testing.T) {
	a, b := must.Value(online.Attend([]float64{1, 1}, []float64{2, 4}, 1)),
		must.Value(online.Attend([]float64{9}, []float64{5}, 1))
	must.Value(a.Merge(b))
	same(t, "output", a.Output(), []float64{3}, 0)
	same(t, "a", flat(a), []float64{1, 2, 6}, 0)
	same(t, "b", flat(b), []float64{9, 1, 5}, 0)
}

func TestPartialErrors(t *testing.T) {
	for _, c := range []struct{ x, v, e int }{{1, 1, 0}, {1, 1, -1}, {2, 3, 2}, {2, 2, 2}, {0, 2, 2}, {1, 4, 2}} {
		if _, err := online.Attend(make([]float64, c.x), make([]float64, c.v), c.e); err == nil {
			t.Errorf("%d scores and %d elements of values of %d: no error", c.x, c.v, c.e)
		}
	}
	two, three := must.Value(online.Attend[float64](nil, nil, 2)), must.Value(online.Attend[float64](nil, nil, 3))
	if _, err := two.Merge(three); err == nil {
		t.Error("merging values of 2 and 3 elements: no error")
	}
}
