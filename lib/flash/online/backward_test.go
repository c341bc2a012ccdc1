package online_test

import (
	"math/rand/v2"
	"testing"

	"github.com/shardbook/shardbook/lib/flash/online"
)

// Compares gradients from saved weights with the reference, and gradients from log-sum-exps with these.
func TestGradients(t *testing.T) {
	heads(t, testGradients[float32])
	heads(t, testGradients[float64])
}

func testGradients[F online.Float](t *testing.T, h online.Head[F], queries, keys int) {
	dout := normal[F](rand.New(rand.NewPCG(15, 16)), queries*h.E, 1)
	three, err := online.ThreeStep(h)
	if err != nil {
		t.Fatal(err)
	}
	want, err := online.ThreeStepGradients(h, three, dout)
	if err != nil {
		t.Fatal(err)
	}
	dq, dk, dv := online.ReferenceGradients(wide(h.Q), wide(h.K), wide(h.V), wide(dout), h.D, h.E, float64(h.Scale),
		visible(h, queries, keys))
	same(t, "dQ", want.DQ, narrow[F](dq), 1)
	same(t, "dK", want.DK, narrow[F](dk), 1)
	same(t, "dV", want.DV, narrow[F](dv), 1)

	for _, tiles := range tilings {
		forward, err := online.QueriesOuter(h, tiles)
		if err != nil {
			t.Fatal(err)
		}
		got, err := online.TiledGradients(h, forward, dout, tiles)
		if err != nil {
			t.Fatal(err)
		}
		same(t, "dQ in tiles", got.DQ, want.DQ, 1)
		same(t, "dK in tiles", got.DK, want.DK, 1)
		same(t, "dV in tiles", got.DV, want.DV, 1)
	}
}
