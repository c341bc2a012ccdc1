package online_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shardbook/shardbook/lib/flash/online"
)

func attend(t testing.TB, x, v []float64, e int) online.Partial[float64] {
	t.Helper()
	p, err := online.Attend(x, v, e)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func merge(t testing.TB, p, q online.Partial[float64]) online.Partial[float64] {
	t.Helper()
	both, err := p.Merge(q)
	if err != nil {
		t.Fatal(err)
	}
	return both
}

func flat(p online.Partial[float64]) []float64 {
	return append([]float64{p.State.M, p.State.D}, p.O...)
}

func TestMergePartials(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	random := func() online.Partial[float64] {
		n := rng.IntN(4)
		x := normal[float64](rng, n, math.Pow(10, float64(rng.IntN(5))))
		if n > 1 {
			x[0] = math.Inf(-1)
		}
		return attend(t, x, normal[float64](rng, n*3, 1), 3)
	}
	empty := attend(t, nil, nil, 3)
	for range 1000 {
		a, b, c := random(), random(), random()
		same(t, "commuted", flat(merge(t, a, b)), flat(merge(t, b, a)), 0)
		same(t, "with nothing", flat(merge(t, a, empty)), flat(a), 0)
		left, right := merge(t, merge(t, a, b), c), merge(t, a, merge(t, b, c))
		same(t, "associated", flat(left), flat(right), 1)
	}
	same(t, "the output of nothing", empty.Output(), []float64{0, 0, 0}, 0)
}

// Output and Merge do not change their operands.
func TestPartialsUnchanged(t *testing.T) {
	a, b := attend(t, []float64{1, 1}, []float64{2, 4}, 1), attend(t, []float64{9}, []float64{5}, 1)
	merge(t, a, b)
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
	if _, err := attend(t, nil, nil, 2).Merge(attend(t, nil, nil, 3)); err == nil {
		t.Error("merging values of 2 and 3 elements: no error")
	}
}

// FuzzSplits cuts scores into pieces and merges them in any tree. Two bytes give the next score, and whether a piece
// ends and which piece before it is merged with the last.
func FuzzSplits(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0, 0, 255, 1, 255, 3, 10, 9})         // with masked scores
	f.Add([]byte{200, 1, 3, 1, 100, 1, 7, 5, 201, 31}) // each score a piece
	f.Fuzz(func(t *testing.T, data []byte) {
		data = data[:min(len(data), 200)]
		var x, v, pieceX, pieceV []float64
		pieces := []online.Partial[float64]{attend(t, nil, nil, 1)}
		end := func() {
			pieces = append(pieces, attend(t, pieceX, pieceV, 1))
			pieceX, pieceV = nil, nil
		}
		for i := 0; i+1 < len(data); i += 2 {
			score := math.Sinh(float64(data[i])/10 - 12.5) // ±1.3·10⁵
			if data[i] == 255 {
				score = math.Inf(-1)
			}
			x, v = append(x, score), append(v, float64(data[i]%5))
			pieceX, pieceV = append(pieceX, x[len(x)-1]), append(pieceV, v[len(v)-1])
			if data[i+1]&1 != 0 {
				end()
			}
			if data[i+1]&2 != 0 && len(pieces) > 1 {
				last := len(pieces) - 1
				other := int(data[i+1]/4) % last
				pieces[other] = merge(t, pieces[other], pieces[last])
				pieces = pieces[:last]
			}
		}
		end()
		all := pieces[0]
		for _, p := range pieces[1:] {
			all = merge(t, p, all)
		}
		want := attend(t, x, v, 1)
		same(t, "merged", flat(all), flat(want), 10)
		same(t, "output", all.Output(), want.Output(), 10)
		softmax, _ := online.ThreePass(x)
		var expected float64
		for j := range x {
			expected += softmax[j] * v[j]
		}
		same(t, "output", all.Output(), []float64{expected}, 10)
		if n := all.Output()[0]; n != n {
			t.Fatal("NaN")
		}
	})
}
