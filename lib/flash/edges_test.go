package flash_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/dtypes/float16"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/flash"
)

// Large scores give finite results, and queries that see no key give zeros.
func TestExtremes(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 2))
	for _, engine := range []flash.Implementation{flash.CPU, flash.Blocks} {
		for _, dtype := range []dtypes.DType{dtypes.Float32, dtypes.BFloat16, dtypes.Float16} {
			p := problem{b: 2, t: 70, s: 150, h: 2, k: 1, d: 8, e: 8, dtype: dtype, causal: true, scale: 1}
			p.fill(r, 1)
			for i := range p.q { // logits of about ±10⁴, and some of 0
				p.q[i], p.key[i%len(p.key)] = rounded(35*math.Copysign(1, p.q[i]), dtype),
					rounded(35*math.Copysign(1, p.key[i%len(p.key)]), dtype)
			}
			p.qp, p.kp = make([]int32, p.t), make([]int32, p.s)
			for i := range p.qp {
				p.qp[i] = int32(i - 40) // the first 40 see no key
			}
			for i := range p.kp {
				p.kp[i] = int32(i)
			}
			got, err := together(devicetest.One(), []problem{p}, func(p problem, in nodes) nodes {
				o := p.options(in)
				o.Implementation, o.Block = engine, flash.Block{Queries: 32, Keys: 64}
				return p.attention(in, o)
			})
			if err != nil {
				t.Fatal(err)
			}
			for part, x := range got[0] {
				rows := p.t * p.h
				for i, v := range x {
					unseen := part < 3 && i/(len(x)/(p.b*rows))%rows < 40*p.h
					switch {
					case part == 1 && unseen && !math.IsInf(v, -1):
						t.Fatalf("%s, %v: log-sum-exp of a query that sees no key is %g", engine, p, v)
					case part != 1 && unseen && v != 0:
						t.Fatalf("%s, %v: %s of a query that sees no key is %g", engine, p, resultNames[part], v)
					case !unseen && (math.IsNaN(v) || math.IsInf(v, 0)):
						t.Fatalf("%s, %v: element %d of %s is %g", engine, p, i, resultNames[part], v)
					}
				}
			}
			// One key has all the weight, so the output is its value, rounded.
			exact := p.exact()
			for i, v := range got[0][0] {
				if math.Abs(v-exact[0][i]) > 0x1p-8*max(1, math.Abs(exact[0][i])) {
					t.Fatalf("%s, %v: output %d is %g, want %g", engine, p, i, v, exact[0][i])
				}
			}
		}
	}
}

// The distance of extreme positions does not wrap around.
func TestFarPositions(t *testing.T) {
	const least, most = math.MinInt32, math.MaxInt32
	for _, window := range []int{0, 3} {
		p := problem{b: 1, t: 6, s: 6, h: 1, k: 1, d: 2, e: 2, dtype: dtypes.Float32, causal: window == 0,
			window: window, qp: []int32{least, -2, 0, 5, most - 1, most},
			kp: []int32{least, least + 1, 0, 4, most - 2, most}}
		p.fill(rand.New(rand.NewPCG(11, 2)), 1)
		compare(t, []problem{p}, 1, func(*flash.Options) {})
		compare(t, []problem{p}, 1, func(o *flash.Options) {
			o.Implementation, o.Block = flash.Blocks,
				flash.Block{Queries: 2, Keys: 3}
		})
	}
}

// Subnormal numbers of float16 are not flushed to 0, though XLA's threads flush those of float32.
func TestSubnormals(t *testing.T) {
	v := tensors.FromShape(shapes.Make(dtypes.Float16, 1, 1, 1, 4))
	tensors.MustMutableFlatData(v, func(flat []float16.Float16) {
		// 2⁻²⁴, 2⁻²⁰, the largest subnormal (negative), the smallest normal
		for i, bits := range []uint16{1, 0x10, 0x83ff, 0x400} {
			flat[i] = float16.Float16(bits)
		}
	})
	for _, engine := range []flash.Implementation{flash.CPU, flash.Blocks} {
		out, err := devicetest.Call(func(in []*node) []*node {
			return nodes{flash.Attention(in[0], in[0], in[0], flash.Options{Implementation: engine})}
		}, v)
		if err != nil {
			t.Fatal(err)
		}
		if got := tensors.MustCopyFlatData[float16.Float16](out[0]); !slices.Equal(got,
			tensors.MustCopyFlatData[float16.Float16](v)) {
			t.Errorf("%s: %x", engine, got)
		}
	}
}

// NaN inputs give NaN, not the zeros of a query that sees no key.
func TestNaN(t *testing.T) {
	for _, engine := range []flash.Implementation{flash.CPU, flash.Blocks} {
		out, err := devicetest.Call(func(in []*node) []*node {
			out, lse := flash.WithLogSumExp(in[0], in[0], in[0], flash.Options{Implementation: engine})
			return nodes{out, lse}
		}, tensors.FromFlatDataAndDimensions([]float32{float32(math.NaN()), 1, 2, 3}, 1, 2, 1, 2))
		if err != nil {
			t.Fatal(err)
		}
		for i, x := range out {
			for _, v := range tensors.MustCopyFlatData[float32](x) {
				if v == v {
					t.Errorf("%s: result %d has %g", engine, i, v)
				}
			}
		}
	}
}
