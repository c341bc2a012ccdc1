package flash_test

import (
	"math/rand/v2"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/flash"
	"github.com/shardbook/shardbook/lib/recompute"
	"github.com/shardbook/shardbook/lib/xla"
)

// memoryOf returns the compiled temporary memory of causal attention and its gradients.
func memoryOf(t *testing.T, b *xla.Backend, tokens int, engine flash.Implementation) int64 {
	t.Helper()
	mesh, err := b.Mesh(xla.Axis("data", 1))
	if err != nil {
		t.Fatal(err)
	}
	r := xla.Replicated()
	program, err := xla.Compile(mesh, func(in nodes) nodes {
		o := flash.Causal()
		o.Implementation = engine
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

// Recomputation under Checkpoint does not change the results.
func TestCheckpoint(t *testing.T) {
	for _, engine := range []flash.Implementation{flash.CPU, flash.Blocks} {
		p := problem{b: 1, t: 40, s: 40, h: 2, k: 1, d: 8, e: 8, dtype: dtypes.Float32, causal: true}
		p.fill(rand.New(rand.NewPCG(8, 2)), 1)
		build := func(call func(f func(in nodes) nodes, in ...*node) nodes) result {
			got, err := together(devicetest.One(), []problem{p}, func(p problem, in nodes) nodes {
				o := p.options(in)
				o.Implementation = engine
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
		recomputed := build(recompute.Call)
		for i, off := range recomputed.errors(plain) {
			if !(off <= 1e-6) {
				t.Errorf("%s: %s differs by %g", engine, resultNames[i], off)
			}
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
			merged := make([]*tensors.Tensor, len(out))
			for i, o := range out {
				if merged[i], err = o.Merge(); err != nil {
					t.Fatal(err)
				}
			}
			for i, off := range toResult(merged).errors(exact) {
				if !(off <= 2e-5) {
					t.Errorf("axis %d, auto %v: error of %s %g", axis, auto, resultNames[i], off)
				}
			}
			report, err := program.Collectives()
			if err != nil {
				t.Fatal(err)
			}
			if len(report) > 0 {
				t.Errorf("axis %d, auto %v: want no collectives, got\n%v", axis, auto, report)
			}
		}
	}
}
