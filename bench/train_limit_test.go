package main

import (
	"encoding/json"
	"math"
	"runtime"
	"testing"

	"golang.org/x/sys/cpu"

	"github.com/shardbook/shardbook/internal/must"
)

// TestMultiplyAdd computes every sum of the limit by itself, from beginnings that differ: equal sums, of which the
// compiler would compute one, would have another total.
func TestMultiplyAdd(t *testing.T) {
	const factor, offset = 0.75, 0.5
	for _, turns := range []int{0, 1, 2, 3, 10} {
		var want float64
		for i := range multiplyAddSums {
			x := float64(i / multiplyAddLanes)
			for range turns {
				x = x*factor + offset
			}
			want += x
		}
		if got := multiplyAdd(turns, factor, offset); math.Abs(float64(got)-want) > 1e-5*want {
			t.Errorf("%d turns: a total of %v, want %v", turns, got, want)
		}
	}
}

// TestLanes compares the lanes with the processor's vector registers: with more, sums do not fit into them.
func TestLanes(t *testing.T) {
	want := 4 // SSE, and NEON
	switch {
	case cpu.X86.HasAVX512F:
		want = 16
	case cpu.X86.HasAVX2:
		want = 8
	}
	if multiplyAddLanes != want {
		t.Errorf("%d lanes, want %d", multiplyAddLanes, want)
	}
}

// TestMatmulFLOPs counts the operations of a step matmul by matmul, and those of the limit's threads.
func TestMatmulFLOPs(t *testing.T) {
	odd := trainSize{Layers: 3, Width: 10, Heads: 5, Seq: 7, Batch: 2, Vocab: 11}
	for _, s := range append([]trainSize{gpt2Size, odd}, trainSizes...) {
		var want float64
		matmul := func(m, n, k float64) { want += 2 * m * n * k * 3 } // forward, and the gradients of both operands
		d, tokens := float64(s.Width), float64(s.Batch*s.Seq)
		for range s.Layers {
			matmul(tokens, 3*d, d) // queries, keys and values
			matmul(tokens, d, d)
			matmul(tokens, 4*d, d)
			matmul(tokens, d, 4*d)
			for range s.Batch * s.Heads { // scores and their values, of half of the pairs
				pairs := float64(s.Seq) * float64(s.Seq) / 2
				matmul(pairs, 1, d/float64(s.Heads))
				matmul(pairs, d/float64(s.Heads), 1)
			}
		}
		matmul(tokens, float64(s.Vocab), d)
		if got := s.matmulFLOPs(); math.Abs(got-want) > 1e-9*want {
			t.Errorf("%v: %g FLOPs, want %g", s, got, want)
		}
		a := arithmetic{threads: 3}
		must.Get(a.prepare(must.Get(json.Marshal(s))(t)))(t)
		if got := float64(a.threads * a.turns * 2 * multiplyAddSums); got > want || got < want-3*turnFLOPs {
			t.Errorf("%v: the limit does %g FLOPs, want %g", s, got, want)
		}
	}
	limit, end, err := serveArithmetic(t.Context())
	must.Do(t, err)
	defer end()
	threads := limit.(together)
	for _, thread := range threads {
		if got := thread.(*arithmetic).threads; got != len(threads) || got != runtime.GOMAXPROCS(0) {
			t.Errorf("one of %d threads does a %dth, want one of %d", len(threads), got, runtime.GOMAXPROCS(0))
		}
	}
}
