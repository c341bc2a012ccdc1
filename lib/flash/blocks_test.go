package flash_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gomlx/compute/dtypes"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/systest"
	"github.com/shardbook/shardbook/lib/flash"
	"github.com/shardbook/shardbook/lib/flash/internal/kernel"
)

// Block sizes that do not divide the axes, and larger ones.
func TestBlocks(t *testing.T) {
	sizes := []flash.Block{{}, {Queries: 32, Keys: 24}, {Queries: 7, Keys: 50}, {Queries: 1, Keys: 13},
		{Queries: 500, Keys: 1}}
	for i, p := range systest.OfFull(t, 10, randomProblems(3, 20)) { // each is compiled on its own
		compare(t, []problem{p}, 1, func(o *flash.Options) {
			o.Implementation, o.Block = flash.Blocks, sizes[i%len(sizes)]
		})
	}
}

// The kernel's loops for narrower vectors give the same result.
func TestNarrowVectors(t *testing.T) {
	defer kernel.Limit(kernel.Any)
	for _, bits := range []kernel.Bits{kernel.Plain, kernel.AVX2} {
		kernel.Limit(bits)
		compare(t, randomProblems(10, 50), 50, func(*flash.Options) {})
	}
}

func TestFloat64(t *testing.T) {
	p := problem{b: 1, t: 9, s: 11, h: 2, k: 1, d: 4, e: 3, dtype: dtypes.Float64, causal: true}
	p.fill(rand.New(rand.NewPCG(4, 2)), 1)
	got, err := together(devicetest.One(), []problem{p}, func(p problem, in nodes) nodes {
		o := p.options(in)
		o.Block = flash.Block{Queries: 4, Keys: 4}
		return p.attention(in, o)
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range got[0].errors(p.exact()) {
		if !(e <= 1e-13) {
			t.Errorf("error of %s %g", resultNames[i], e)
		}
	}
}

// Blocks that no query sees are skipped, not only masked: NaN values in them would give 0·NaN.
func TestSkipsBlocks(t *testing.T) {
	nan := math.NaN()
	p := problem{b: 1, t: 512, s: 512, h: 1, k: 1, d: 4, e: 4, dtype: dtypes.Float32, causal: true, window: 100}
	p.fill(rand.New(rand.NewPCG(6, 2)), 1)
	for i := 0; i < 64*p.e; i++ {
		p.v[i], p.v[len(p.v)-1-i] = nan, nan // keys 0 to 63 and 448 to 511
	}
	for _, engine := range []flash.Implementation{flash.CPU, flash.Blocks} {
		got, err := together(devicetest.One(), []problem{p}, func(p problem, in nodes) nodes {
			o := p.options(in)
			o.Implementation, o.Block = engine, flash.Block{Queries: 64, Keys: 64}
			return p.attention(in, o)
		})
		if err != nil {
			t.Fatal(err)
		}
		// Tiles of 128 queries: those from 256 to 383 see keys 157 to 383.
		for i, v := range got[0][0][256*p.e : 384*p.e] {
			if math.IsNaN(v) {
				t.Fatalf("%q: element %d of the output of queries from 256 is NaN, from keys that they do not see",
					engine, i)
			}
		}
		if !math.IsNaN(got[0][0][0]) {
			t.Errorf("%q: the first query sees a NaN, but its output is %g", engine, got[0][0][0])
		}
	}
}
