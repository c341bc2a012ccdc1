package flash_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/dtypes/float16"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
	"github.com/shardbook/shardbook/lib/flash"
	"github.com/shardbook/shardbook/lib/flash/internal/kernel"
	"github.com/shardbook/shardbook/lib/xla"
)

func TestMain(m *testing.M) { devicetest.Main(m) }

// together runs several problems in one program, since compiling takes longer than running.
func together(backend compute.Backend, problems []problem, build func(p problem, in nodes) nodes) (results []result) {
	var args []*tensors.Tensor
	for _, p := range problems {
		args = append(args, p.args()...)
	}
	out := must.Value(devicetest.CallOn(backend, func(in nodes) (all nodes) {
		for _, p := range problems {
			n := len(p.args())
			all, in = append(all, build(p, in[:n])...), in[n:]
		}
		return all
	}, args...))
	for some := range slices.Chunk(out, len(result{})) {
		results = append(results, toResult(some))
	}
	return results
}

// attend runs one problem on a device.
func (p problem) attend(engine flash.Implementation, block flash.Block) result {
	return together(devicetest.One(), []problem{p}, func(p problem, in nodes) nodes {
		o := p.options(in)
		o.Implementation, o.Block = engine, block
		return p.attention(in, o)
	})[0]
}

// slack is about 100 roundings to float32, and 16 to half types: most of their error is that of the naive computation.
var slack = map[dtypes.DType]float64{dtypes.Float32: 0x1p-17, dtypes.BFloat16: 0x1p-5, dtypes.Float16: 0x1p-8}

// check uses flash-attention's criterion (Dao et al., tests/test_flash_attn.py): the error against float64 is at most
// twice that of the naive computation in the same type, plus a small one relative to the largest value.
func (p problem) check(t *testing.T, got result) {
	t.Helper()
	exact := p.exact()
	is, may := got.errors(exact), together(devicetest.PureGo(), []problem{p}, problem.naive)[0].errors(exact)
	for i := range is {
		largest := 1.0
		for _, x := range exact[i] {
			if !math.IsInf(x, 0) {
				largest = max(largest, math.Abs(x))
			}
		}
		unit := slack[p.dtype]
		if i == 1 { // log-sum-exps are in float32
			unit = slack[dtypes.Float32]
		}
		if limit := 2*may[i] + unit*largest; !(is[i] <= limit) {
			t.Errorf("%v: error of %s %g, of the naive computation %g: want at most %g", p, resultNames[i], is[i],
				may[i], limit)
		}
	}
}

// compare checks the problems with changed options, several in one program.
func compare(t *testing.T, problems []problem, each int, change func(o *flash.Options)) {
	t.Helper()
	for some := range slices.Chunk(problems, each) {
		for i, got := range together(devicetest.One(), some, func(p problem, in nodes) nodes {
			o := p.options(in)
			change(&o)
			return p.attention(in, o)
		}) {
			some[i].check(t, got)
		}
	}
}

func randomProblems(seed uint64, n int) []problem {
	r := rand.New(rand.NewPCG(seed, 2))
	problems := make([]problem, n)
	for i := range problems {
		problems[i] = randomProblem(r)
	}
	return problems
}

func TestAgainstFloat64(t *testing.T) {
	compare(t, systest.OfFull(t, 200, randomProblems(1, 1000)), 50, func(o *flash.Options) {})
}

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
	for i, e := range p.attend(flash.Auto, flash.Block{Queries: 4, Keys: 4}).errors(p.exact()) {
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
		got := p.attend(engine, flash.Block{Queries: 64, Keys: 64})
		// Tiles of 128 queries: those from 256 to 383 see keys 157 to 383.
		for i, v := range got[0][256*p.e : 384*p.e] {
			if math.IsNaN(v) {
				t.Fatalf("%q: element %d of the output of queries from 256 is NaN, from keys that they do not see",
					engine, i)
			}
		}
		if !math.IsNaN(got[0][0]) {
			t.Errorf("%q: the first query sees a NaN, but its output is %g", engine, got[0][0])
		}
	}
}

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
			p.qp, p.kp = positions(p.t, -40, 1), positions(p.s, 0, 1) // the first 40 queries see no key
			got := p.attend(engine, flash.Block{Queries: 32, Keys: 64})
			for part, x := range got {
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
			for i, v := range got[0] {
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
			o.Implementation, o.Block = flash.Blocks, flash.Block{Queries: 2, Keys: 3}
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
		out := must.Value(devicetest.Call(func(in []*node) []*node {
			return nodes{flash.Attention(in[0], in[0], in[0], flash.Options{Implementation: engine})}
		}, v))
		if got := tensors.MustCopyFlatData[float16.Float16](out[0]); !slices.Equal(got,
			tensors.MustCopyFlatData[float16.Float16](v)) {
			t.Errorf("%s: %x", engine, got)
		}
	}
}

// NaN inputs give NaN, not the zeros of a query that sees no key.
func TestNaN(t *testing.T) {
	for _, engine := range []flash.Implementation{flash.CPU, flash.Blocks} {
		out := must.Value(devicetest.Call(func(in []*node) []*node {
			o := flash.Options{Implementation: engine}
			return nodes{flash.Attention(in[0], in[0], in[0], o), flash.Attend(in[0], in[0], in[0], o).D}
		}, tensors.FromFlatDataAndDimensions([]float32{float32(math.NaN()), 1, 2, 3}, 1, 2, 1, 2)))
		for i, x := range out {
			for _, v := range tensors.MustCopyFlatData[float32](x) {
				if v == v {
					t.Errorf("%s: result %d has %g", engine, i, v)
				}
			}
		}
	}
}

// Attention to parts of the keys, merged in any order, is attention to all keys. So are its gradients.
func TestPartial(t *testing.T) {
	for _, p := range []problem{
		{b: 2, t: 40, s: 90, h: 4, k: 2, d: 8, e: 5, dtype: dtypes.Float32, causal: true},
		{b: 1, t: 30, s: 60, h: 2, k: 2, d: 8, e: 8, dtype: dtypes.BFloat16, window: 20},
	} {
		p.fill(rand.New(rand.NewPCG(7, 2)), 1)
		p.qp, p.kp = positions(p.t, 0, 2), positions(p.s, -3, 1) // with causal some queries see no key of some parts
		cuts := [][2]int{{50, p.s}, {0, 20}, {20, 50}}
		got := together(devicetest.One(), []problem{p}, func(p problem, in nodes) nodes {
			o := p.options(in)
			var merged flash.Partial
			part := func(i int) (k, v *node, po flash.Options) {
				cut := graph.AxisRange(cuts[i][0], cuts[i][1])
				po = o
				po.KeyPositions = graph.Slice(o.KeyPositions, cut)
				return graph.Slice(in[1], graph.AxisRange(), cut), graph.Slice(in[2], graph.AxisRange(), cut), po
			}
			for i := range cuts {
				k, v, po := part(i)
				if partial := flash.Attend(in[0], k, v, po); i == 0 {
					merged = partial
				} else {
					merged = partial.Merge(merged)
				}
			}
			var dq *node
			dks, dvs := make(nodes, 3), make(nodes, 3)
			for i := range cuts {
				k, v, po := part(i)
				q, dk, dv := flash.Gradients(in[0], k, v, merged, in[3], po)
				if q = graph.ConvertDType(q, dtypes.Float32); dq == nil {
					dq = q
				} else {
					dq = graph.Add(dq, q)
				}
				dks[(i+2)%3], dvs[(i+2)%3] = dk, dv
			}
			return nodes{merged.Output(p.dtype), graph.Add(merged.M, graph.Log(merged.D)),
				graph.ConvertDType(dq, p.dtype), graph.Concatenate(dks, 1), graph.Concatenate(dvs, 1)}
		})
		p.check(t, got[0])
	}
}

// memoryOf returns the compiled temporary memory of causal attention and its gradients.
func memoryOf(t *testing.T, b *xla.Backend, tokens int, engine flash.Implementation) int64 {
	t.Helper()
	mesh := must.Value(b.Mesh(xla.Axis("data", 1)))
	r := xla.Replicated()
	program := must.Value(xla.Compile(mesh, func(in nodes) nodes {
		o := flash.Causal()
		o.Implementation = engine
		return graph.Gradient(graph.ReduceAllSum(flash.Attention(in[0], in[1], in[2], o)), in...)
	}, xla.In(r, r, r).Gives(r, r, r)))
	defer program.Close()
	x := tensors.FromShape(shapes.Make(dtypes.Float32, 1, tokens, 8, 64))
	must.Do(t, program.Prepare(x, x, x))
	memory := must.Value(program.Memory())
	return memory.Temporary
}

// With 8192 tokens and 8 heads of width 64, memory is at most 100 MiB, where the scores alone would be 2 GiB. It is
// linear in the tokens.
func TestMemory(t *testing.T) {
	for _, engine := range []flash.Implementation{flash.CPU, flash.Blocks} {
		short, long := memoryOf(t, devicetest.One(), 4096, engine), memoryOf(t, devicetest.One(), 8192, engine)
		t.Logf("%s: %d and %d bytes", engine, short, long)
		if long > 100<<20 || float64(long) > 2.05*float64(short) {
			t.Errorf("%s: temporary memory for 4096 tokens is %d bytes, for 8192 it is %d", engine, short, long)
		}
	}
}

// Four devices with a sharded batch or sharded heads, by hand or by the compiler, give the result of one device without
// communication.
func TestSharded(t *testing.T) {
	p := problem{b: 4, t: 50, s: 50, h: 8, k: 4, d: 8, e: 8, dtype: dtypes.Float32, causal: true}
	p.fill(rand.New(rand.NewPCG(9, 2)), 1)
	exact := p.exact()
	backend := devicetest.Open(t, 4)
	mesh := must.Value(backend.Mesh(xla.Axis("model", 4)))
	for _, axis := range []int{0, 2} {
		for _, auto := range []bool{false, true} {
			shard := xla.Shard(axis, "model")
			layout := xla.In(shard, shard, shard, shard).Gives(shard, shard, shard, shard, shard)
			build := func(in nodes) nodes { return p.attention(in, flash.Causal()) }
			program, err := xla.Compile(mesh, build, layout)
			if auto {
				program, err = xla.CompileAuto(mesh, build, layout)
			}
			must.Do(t, err)
			defer program.Close()
			args := p.args()
			out, err := program.Call(args[0], args[1], args[2], args[3])
			if err != nil {
				t.Fatalf("axis %d, auto %v: %v", axis, auto, err)
			}
			merged := make([]*tensors.Tensor, len(out))
			for i, o := range out {
				merged[i] = must.Value(o.Merge())
			}
			for i, off := range toResult(merged).errors(exact) {
				if !(off <= 2e-5) {
					t.Errorf("axis %d, auto %v: error of %s %g", axis, auto, resultNames[i], off)
				}
			}
			report := must.Value(program.Collectives())
			if len(report) > 0 {
				t.Errorf("axis %d, auto %v: want no collectives, got\n%v", axis, auto, report)
			}
		}
	}
}

func TestErrors(t *testing.T) {
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
		{args: with(0, f32(2, 5, 3, 8)), want: "3 query heads are not a multiple of 2 key heads"},
		{args: with(0, f32(2, 0, 4, 8)), want: "none may be empty"},
		{args: [3]*tensors.Tensor{tensors.FromShape(shapes.Make(dtypes.Int32, 1, 2, 1, 2)),
			tensors.FromShape(shapes.Make(dtypes.Int32, 1, 2, 1, 2)), tensors.FromShape(shapes.Make(dtypes.Int32, 1, 2,
				1, 2))}, want: "want float32, float64, bfloat16 or float16"},
		{args: good, change: func(o *flash.Options, _ *node) { o.Window = -1 }, want: "flash: Window is -1: give"},
		{args: good, change: func(o *flash.Options, _ *node) { o.Scale = math.NaN() },
			want: "flash: Scale is NaN: give a positive number"},
		{args: good, change: func(o *flash.Options, _ *node) { o.Scale = -1 }, want: "flash: Scale is -1"},
		{args: good, change: func(o *flash.Options, _ *node) { o.Block.Keys = -1 },
			want: "flash: Block is 0 queries and -1 keys"},
		{args: good, change: func(o *flash.Options, _ *node) { o.Implementation = "gpu" },
			want: `flash: unknown implementation "gpu": give`},
		{args: good, change: func(o *flash.Options, _ *node) { o.Implementation = flash.CuDNN },
			want: `flash: the implementation "cudnn" needs a CUDA device`},
		{args: good, change: func(o *flash.Options, q *node) {
			o.QuerySegments = graph.Zeros(q.Graph(), shapes.Make(dtypes.Int32, 2, 5))
		}, want: "give both or none"},
		{args: good, change: func(o *flash.Options, q *node) {
			o.KeyPositions = graph.Zeros(q.Graph(), shapes.Make(dtypes.Int32, 5))
		}, want: "flash: key positions are (Int32)[5]: want (Int32)[7]"},
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

func TestPartialErrors(t *testing.T) {
	x := tensors.FromShape(shapes.Make(dtypes.Float32, 1, 2, 1, 2))
	for want, build := range map[string]func(x *node) *node{
		`the implementation "cudnn" gives no partial results`: func(x *node) *node {
			return flash.Attend(x, x, x, flash.Options{Implementation: flash.CuDNN}).O
		},
		"flash: dOut is Float64: want Float32 or Float32": func(x *node) *node {
			dq, _, _ := flash.Gradients(x, x, x, flash.Attend(x, x, x, flash.Options{}),
				graph.ConvertDType(x, dtypes.Float64), flash.Options{})
			return dq
		},
		"flash: merged.D is (Float32)[1, 2, 1, 2]": func(x *node) *node {
			merged := flash.Attend(x, x, x, flash.Options{})
			merged.D = x
			dq, _, _ := flash.Gradients(x, x, x, merged, x, flash.Options{})
			return dq
		},
	} {
		_, err := devicetest.Call(xla.ThrowingErrors(func(in []*node) []*node { return nodes{build(in[0])} }), x)
		must.Refuse(t, "", err, want)
	}
	_, err := devicetest.CallOn(devicetest.PureGo(), xla.ThrowingErrors(func(in []*node) []*node {
		return nodes{flash.Attention(in[0], in[0], in[0], flash.Options{})}
	}), tensors.FromShape(x.Shape()))
	must.Refuse(t, "another backend", err, "open one with xla.Open")
}

// Three tokens, one head of width 2. The first token sees only itself, so its output is its value.
func ExampleAttention() {
	x := graph.MustNewExec(devicetest.One(), func(q, k, v *graph.Node) *graph.Node {
		token := func(x *graph.Node) *graph.Node { return graph.Reshape(x, 1, 3, 1, 2) } // (B,T,H,D)
		return graph.Reshape(flash.Attention(token(q), token(k), token(v), flash.Causal()), 3, 2)
	})
	out := x.MustCall([][]float32{{1, 0}, {0, 1}, {1, 1}}, [][]float32{{1, 0}, {0, 1}, {1, 1}},
		[][]float32{{1, 2}, {3, 4}, {5, 6}})[0]
	for _, row := range out.Value().([][]float32) {
		fmt.Printf("%.4f\n", row)
	}
	// Output:
	// [1.0000 2.0000]
	// [2.3395 3.3395]
	// [3.5105 4.5105]
}
