package online_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shardbook/shardbook/lib/flash/online"
)

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
