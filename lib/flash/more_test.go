package flash_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/dtypes/float16"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/flash"
	"github.com/shardbook/shardbook/lib/flash/internal/kernel"
	"github.com/shardbook/shardbook/lib/recompute"
	"github.com/shardbook/shardbook/lib/xla"
)

// Blocks that divide nothing, and blocks larger than the axes.
func TestBlocks(t *testing.T) {
	n := 40
	if testing.Short() {
		n = 10
	}
	sizes := []flash.Block{{}, {Queries: 32, Keys: 24}, {Queries: 7, Keys: 50}, {Queries: 1, Keys: 13}, {Queries: 500, Keys: 1}}
	for i, p := range randomProblems(3, n) {
		compare(t, []problem{p}, 1, func(o *flash.Options) { o.Engine, o.Block = flash.Blocks, sizes[i%len(sizes)] })
	}
}

// The kernel's loops for processors with narrower vectors give the same.
func TestNarrowVectors(t *testing.T) {
	defer kernel.Limit(kernel.Any)
	for _, bits := range []kernel.Bits{kernel.Plain, kernel.AVX2} {
		kernel.Limit(bits)
		compare(t, randomProblems(10, 50), 50, func(*flash.Options) {})
	}
}

// float64 is for blocks alone.
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
	for i, off := range got[0].errors(p.exact()) {
		if !(off <= 1e-13) {
			t.Errorf("error of %s %g", resultNames[i], off)
		}
	}
}

// Whatever the numbers, what is finite stays finite, and a query that sees nothing gives zeros.
func TestExtremes(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 2))
	for _, engine := range []flash.Engine{flash.CPU, flash.Blocks} {
		for _, dtype := range []dtypes.DType{dtypes.Float32, dtypes.BFloat16, dtypes.Float16} {
			p := problem{b: 2, t: 70, s: 150, h: 2, k: 1, d: 8, e: 8, dtype: dtype, causal: true, scale: 1}
			p.fill(r, 1)
			for i := range p.q { // logits of about ±10⁴, and some of 0
				p.q[i], p.key[i%len(p.key)] = rounded(35*math.Copysign(1, p.q[i]), dtype), rounded(35*math.Copysign(1, p.key[i%len(p.key)]), dtype)
			}
			p.qp, p.kp = make([]int32, p.t), make([]int32, p.s)
			for i := range p.qp {
				p.qp[i] = int32(i - 40) // the first 40 see nothing
			}
			for i := range p.kp {
				p.kp[i] = int32(i)
			}
			got, err := together(devicetest.One(), []problem{p}, func(p problem, in nodes) nodes {
				o := p.options(in)
				o.Engine, o.Block = engine, flash.Block{Queries: 32, Keys: 64}
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
						t.Fatalf("%s, %v: log-sum-exp of a query that sees nothing is %g", engine, p, v)
					case part != 1 && unseen && v != 0:
						t.Fatalf("%s, %v: %s of a query that sees nothing is %g", engine, p, resultNames[part], v)
					case !unseen && (math.IsNaN(v) || math.IsInf(v, 0)):
						t.Fatalf("%s, %v: element %d of %s is %g", engine, p, i, resultNames[part], v)
					}
				}
			}
			// One key has all the weight, so that the output is its value, rounded.
			exact := p.exact()
			for i, v := range got[0][0] {
				if math.Abs(v-exact[0][i]) > 0x1p-8*max(1, math.Abs(exact[0][i])) {
					t.Fatalf("%s, %v: output %d is %g, want %g", engine, p, i, v, exact[0][i])
				}
			}
		}
	}
}

// Positions may be any: none is so far away that the distance wraps around.
func TestFarPositions(t *testing.T) {
	const least, most = math.MinInt32, math.MaxInt32
	for _, window := range []int{0, 3} {
		p := problem{b: 1, t: 6, s: 6, h: 1, k: 1, d: 2, e: 2, dtype: dtypes.Float32, causal: window == 0, window: window,
			qp: []int32{least, -2, 0, 5, most - 1, most}, kp: []int32{least, least + 1, 0, 4, most - 2, most}}
		p.fill(rand.New(rand.NewPCG(11, 2)), 1)
		compare(t, []problem{p}, 1, func(*flash.Options) {})
		compare(t, []problem{p}, 1, func(o *flash.Options) { o.Engine, o.Block = flash.Blocks, flash.Block{Queries: 2, Keys: 3} })
	}
}

// Subnormal numbers of float16 are numbers, also to XLA's threads, which take those of float32 for 0.
func TestSubnormals(t *testing.T) {
	v := tensors.FromShape(shapes.Make(dtypes.Float16, 1, 1, 1, 4))
	tensors.MustMutableFlatData(v, func(flat []float16.Float16) {
		for i, bits := range []uint16{1, 0x10, 0x83ff, 0x400} { // 2⁻²⁴, 2⁻²⁰, the largest, negative, and the least that is normal
			flat[i] = float16.Float16(bits)
		}
	})
	for _, engine := range []flash.Engine{flash.CPU, flash.Blocks} {
		out, err := devicetest.Call(func(in []*node) []*node {
			return nodes{flash.Attention(in[0], in[0], in[0], flash.Options{Engine: engine})}
		}, v)
		if err != nil {
			t.Fatal(err)
		}
		if got := tensors.MustCopyFlatData[float16.Float16](out[0]); !slices.Equal(got, tensors.MustCopyFlatData[float16.Float16](v)) {
			t.Errorf("%s: %x", engine, got)
		}
	}
}

// What is no number stays none, and is not taken for a query that sees nothing.
func TestNaN(t *testing.T) {
	for _, engine := range []flash.Engine{flash.CPU, flash.Blocks} {
		out, err := devicetest.Call(func(in []*node) []*node {
			out, lse := flash.WithLogSumExp(in[0], in[0], in[0], flash.Options{Engine: engine})
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

// NaN in values that a block of queries does not see would come through a mask as 0·NaN: blocks are skipped, not masked.
func TestSkipsBlocks(t *testing.T) {
	nan := math.NaN()
	p := problem{b: 1, t: 512, s: 512, h: 1, k: 1, d: 4, e: 4, dtype: dtypes.Float32, causal: true, window: 100}
	p.fill(rand.New(rand.NewPCG(6, 2)), 1)
	for i := 0; i < 64*p.e; i++ {
		p.v[i], p.v[len(p.v)-1-i] = nan, nan // keys 0 to 63 and 448 to 511
	}
	for _, engine := range []flash.Engine{flash.CPU, flash.Blocks} {
		got, err := together(devicetest.One(), []problem{p}, func(p problem, in nodes) nodes {
			o := p.options(in)
			o.Engine, o.Block = engine, flash.Block{Queries: 64, Keys: 64}
			return p.attention(in, o)
		})
		if err != nil {
			t.Fatal(err)
		}
		// Tiles of 128 queries: those from 256 to 383 see keys 157 to 383.
		for i, v := range got[0][0][256*p.e : 384*p.e] {
			if math.IsNaN(v) {
				t.Fatalf("%q: element %d of the output of queries from 256 is NaN: keys that they do not see were computed with", engine, i)
			}
		}
		if !math.IsNaN(got[0][0][0]) {
			t.Errorf("%q: the first query sees the first key, whose value is NaN, and its output is %g", engine, got[0][0][0])
		}
	}
}

// memoryOf returns the compiled temporary memory of causal attention and its gradients.
func memoryOf(t *testing.T, b *xla.Backend, tokens int, engine flash.Engine) int64 {
	t.Helper()
	mesh, err := b.Mesh(xla.Axis("data", 1))
	if err != nil {
		t.Fatal(err)
	}
	r := xla.Replicated()
	program, err := xla.Compile(mesh, func(in nodes) nodes {
		o := flash.Causal()
		o.Engine = engine
		return graph.Gradient(graph.ReduceAllSum(flash.Attention(in[0], in[1], in[2], o)), in...)
	}, xla.In(r, r, r).Gives(r, r, r))
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	x := tensors.FromShape(shapes.Make(dtypes.Float32, 1, tokens, 8, 64))
	if err := program.Prepare(x, x, x); err != nil {
		t.Fatal(err)
	}
	memory, err := program.Memory()
	if err != nil {
		t.Fatal(err)
	}
	return memory.Temporary
}

// What is promised: at 8192 tokens, 8 heads of width 64, no more than 100 MiB, where the scores alone take 2 GiB; and memory
// in proportion to the tokens.
func TestMemory(t *testing.T) {
	for _, engine := range []flash.Engine{flash.CPU, flash.Blocks} {
		short, long := memoryOf(t, devicetest.One(), 4096, engine), memoryOf(t, devicetest.One(), 8192, engine)
		t.Logf("%s: %d and %d bytes", engine, short, long)
		if long > 100<<20 || float64(long) > 2.05*float64(short) {
			t.Errorf("%s: temporary memory for 4096 tokens is %d bytes, for 8192 it is %d", engine, short, long)
		}
	}
}

// Attention to parts of the keys, merged in any order, is attention to all; and so are its gradients.
func TestPartial(t *testing.T) {
	for _, p := range []problem{
		{b: 2, t: 40, s: 90, h: 4, k: 2, d: 8, e: 5, dtype: dtypes.Float32, causal: true},
		{b: 1, t: 30, s: 60, h: 2, k: 2, d: 8, e: 8, dtype: dtypes.BFloat16, window: 20},
	} {
		p.fill(rand.New(rand.NewPCG(7, 2)), 1)
		p.qp, p.kp = make([]int32, p.t), make([]int32, p.s)
		for i := range p.qp {
			p.qp[i] = int32(i * 2)
		}
		for i := range p.kp {
			p.kp[i] = int32(i) - 3 // with causal some queries see nothing of some parts
		}
		cuts := [][2]int{{50, p.s}, {0, 20}, {20, 50}}
		got, err := together(devicetest.One(), []problem{p}, func(p problem, in nodes) nodes {
			o := p.options(in)
			var whole flash.Partial
			part := func(i int) (k, v *node, po flash.Options) {
				cut := graph.AxisRange(cuts[i][0], cuts[i][1])
				po = o
				po.KeyPositions = graph.Slice(o.KeyPositions, cut)
				return graph.Slice(in[1], graph.AxisRange(), cut), graph.Slice(in[2], graph.AxisRange(), cut), po
			}
			for i := range cuts {
				k, v, po := part(i)
				if one := flash.Attend(in[0], k, v, po); i == 0 {
					whole = one
				} else {
					whole = one.Merge(whole)
				}
			}
			var dq *node
			dks, dvs := make(nodes, 3), make(nodes, 3)
			for i := range cuts {
				k, v, po := part(i)
				q, dk, dv := flash.Gradients(in[0], k, v, whole, in[3], po)
				if q = graph.ConvertDType(q, dtypes.Float32); dq == nil {
					dq = q
				} else {
					dq = graph.Add(dq, q)
				}
				dks[(i+2)%3], dvs[(i+2)%3] = dk, dv
			}
			return nodes{whole.Output(p.dtype), whole.LogSumExp(), graph.ConvertDType(dq, p.dtype), graph.Concatenate(dks, 1), graph.Concatenate(dvs, 1)}
		})
		if err != nil {
			t.Fatal(err)
		}
		naive, err := together(devicetest.PureGo(), []problem{p}, problem.naive)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.check(got[0], naive[0], p.exact()); err != nil {
			t.Error(err)
		}
	}
}

// What Checkpoint makes again is what it was, and its gradient FlashAttention's.
func TestCheckpoint(t *testing.T) {
	for _, engine := range []flash.Engine{flash.CPU, flash.Blocks} {
		p := problem{b: 1, t: 40, s: 40, h: 2, k: 1, d: 8, e: 8, dtype: dtypes.Float32, causal: true}
		p.fill(rand.New(rand.NewPCG(8, 2)), 1)
		build := func(call func(f func(in nodes) nodes, in ...*node) nodes) result {
			got, err := together(devicetest.One(), []problem{p}, func(p problem, in nodes) nodes {
				o := p.options(in)
				o.Engine = engine
				out := call(func(in nodes) nodes {
					out, lse := flash.WithLogSumExp(graph.MulScalar(in[0], 0.5), graph.Tanh(in[1]), in[2], o)
					return nodes{graph.Sin(out), lse}
				}, in[:3]...)
				return p.results(in, out[0], out[1])
			})
			if err != nil {
				t.Fatal(err)
			}
			return got[0]
		}
		plain := build(func(f func(in nodes) nodes, in ...*node) nodes { return f(in) })
		again := build(recompute.Call)
		for i, off := range again.errors(plain) {
			if !(off <= 1e-6) {
				t.Errorf("%s: %s differs by %g", engine, resultNames[i], off)
			}
		}
	}
}

// On four devices, with the batch or the heads sharded, explicit or by the compiler, each result is that of one device.
func TestSharded(t *testing.T) {
	p := problem{b: 4, t: 50, s: 50, h: 8, k: 4, d: 8, e: 8, dtype: dtypes.Float32, causal: true}
	p.fill(rand.New(rand.NewPCG(9, 2)), 1)
	exact := p.exact()
	backend := devicetest.Open(t, 4)
	mesh, err := backend.Mesh(xla.Axis("model", 4))
	if err != nil {
		t.Fatal(err)
	}
	for _, axis := range []int{0, 2} {
		for _, auto := range []bool{false, true} {
			shard := xla.Shard(axis, "model")
			layout := xla.In(shard, shard, shard, shard).Gives(shard, shard, shard, shard, shard)
			build := func(in nodes) nodes { return p.attention(in, flash.Causal()) }
			program, err := xla.Compile(mesh, build, layout)
			if auto {
				program, err = xla.CompileAuto(mesh, build, layout)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer program.Close()
			args := p.args()
			out, err := program.Call(args[0], args[1], args[2], args[3])
			if err != nil {
				t.Fatalf("axis %d, auto %v: %v", axis, auto, err)
			}
			whole := make([]*tensors.Tensor, len(out))
			for i, o := range out {
				if whole[i], err = o.Merge(); err != nil {
					t.Fatal(err)
				}
			}
			for i, off := range toResult(whole).errors(exact) {
				if !(off <= 2e-5) {
					t.Errorf("axis %d, auto %v: error of %s %g", axis, auto, resultNames[i], off)
				}
			}
			report, err := program.Collectives()
			if err != nil {
				t.Fatal(err)
			}
			if len(report) > 0 {
				t.Errorf("axis %d, auto %v: heads and sequences need nothing of each other, but devices talk:\n%v", axis, auto, report)
			}
		}
	}
}

// What does not fit is refused, with what was wrong and what to do.
func TestRefuses(t *testing.T) {
	f32 := func(dims ...int) *tensors.Tensor { return tensors.FromShape(shapes.Make(dtypes.Float32, dims...)) }
	good := [3]*tensors.Tensor{f32(2, 5, 4, 8), f32(2, 7, 2, 8), f32(2, 7, 2, 3)}
	with := func(i int, x *tensors.Tensor) [3]*tensors.Tensor { y := good; y[i] = x; return y }
	half := tensors.FromShape(shapes.Make(dtypes.BFloat16, 2, 7, 2, 8))
	for _, c := range []struct {
		args   [3]*tensors.Tensor
		change func(o *flash.Options, q *node)
		want   string
	}{
		{args: good},
		{args: with(0, f32(2, 5, 32)), want: "flash: queries are (Float32)[2, 5, 32]"},
		{args: with(1, half), want: "of one type"},
		{args: with(1, f32(3, 7, 2, 8)), want: "want (B,T,H,D), (B,S,K,D) and (B,S,K,E)"},
		{args: with(2, f32(2, 6, 2, 3)), want: "values (Float32)[2, 6, 2, 3]"},
		{args: with(0, f32(2, 5, 3, 8)), want: "3 query heads are no multiple of 2 key heads"},
		{args: with(0, f32(2, 0, 4, 8)), want: "none may be empty"},
		{args: [3]*tensors.Tensor{tensors.FromShape(shapes.Make(dtypes.Int32, 1, 2, 1, 2)), tensors.FromShape(shapes.Make(dtypes.Int32, 1, 2, 1, 2)),
			tensors.FromShape(shapes.Make(dtypes.Int32, 1, 2, 1, 2))}, want: "want float32, float64, bfloat16 or float16"},
		{args: good, change: func(o *flash.Options, _ *node) { o.Window = -1 }, want: "flash: a window of -1: give"},
		{args: good, change: func(o *flash.Options, _ *node) { o.Scale = math.NaN() }, want: "flash: the scale is NaN: give a positive number"},
		{args: good, change: func(o *flash.Options, _ *node) { o.Scale = -1 }, want: "flash: the scale is -1"},
		{args: good, change: func(o *flash.Options, _ *node) { o.Block.Keys = -1 }, want: "flash: blocks of 0 queries and -1 keys"},
		{args: good, change: func(o *flash.Options, _ *node) { o.Engine = "gpu" }, want: `flash: engine "gpu": give`},
		{args: good, change: func(o *flash.Options, _ *node) { o.Engine = flash.CuDNN }, want: `flash: the engine "cudnn" needs a CUDA device`},
		{args: good, change: func(o *flash.Options, q *node) {
			o.QuerySegments = graph.Zeros(q.Graph(), shapes.Make(dtypes.Int32, 2, 5))
		}, want: "give both or none"},
		{args: good, change: func(o *flash.Options, q *node) { o.KeyPositions = graph.Zeros(q.Graph(), shapes.Make(dtypes.Int32, 5)) }, want: "flash: key positions are (Int32)[5]: want (Int32)[7]"},
		{args: good, change: func(o *flash.Options, _ *node) { o.Block.Queries = math.MaxInt }},
	} {
		_, err := devicetest.Call(xla.ThrowingErrors(func(in []*node) []*node {
			var o flash.Options
			if c.change != nil {
				c.change(&o, in[0])
			}
			return nodes{flash.Attention(in[0], in[1], in[2], o)}
		}), c.args[:]...)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("error %v, want %q", err, c.want)
		}
	}
}

// Partial results and their gradients are refused what they cannot be, and all attention another backend.
func TestRefusesPartial(t *testing.T) {
	x := tensors.FromShape(shapes.Make(dtypes.Float32, 1, 2, 1, 2))
	for want, build := range map[string]func(x *node) *node{
		`the engine "cudnn" gives no partial results`: func(x *node) *node { return flash.Attend(x, x, x, flash.Options{Engine: flash.CuDNN}).O },
		"flash: dOut is Float64: want Float32 or Float32": func(x *node) *node {
			dq, _, _ := flash.Gradients(x, x, x, flash.Attend(x, x, x, flash.Options{}), graph.ConvertDType(x, dtypes.Float64), flash.Options{})
			return dq
		},
		"flash: whole.D is (Float32)[1, 2, 1, 2]": func(x *node) *node {
			whole := flash.Attend(x, x, x, flash.Options{})
			whole.D = x
			dq, _, _ := flash.Gradients(x, x, x, whole, x, flash.Options{})
			return dq
		},
	} {
		_, err := devicetest.Call(xla.ThrowingErrors(func(in []*node) []*node { return nodes{build(in[0])} }), x)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	_, err := devicetest.CallOn(devicetest.PureGo(), xla.ThrowingErrors(func(in []*node) []*node {
		return nodes{flash.Attention(in[0], in[0], in[0], flash.Options{})}
	}), tensors.FromShape(x.Shape()))
	if err == nil || !strings.Contains(err.Error(), "open one with xla.Open") {
		t.Errorf("another backend: error %v", err)
	}
}
