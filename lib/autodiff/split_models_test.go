package autodiff_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/autodiff"
	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/flash"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/xla"
)

const batch = 2

var tiny = gpt.Config{Layers: 1, Width: 8, Heads: 4, Seq: 6, Vocab: 11}

// model is a piece of a model, with the size of its saved activations.
type model struct {
	piece
	bytes int // kept
	onXLA bool
}

// part is a piece of a model in a type: apply of the parameters under the paths and of x, whose floats are cast, as a
// training step does.
func part(name string, c gpt.Config, dtype dtypes.DType, paths []string, v *tensors.Tensor,
	apply func(p params.Nodes, x nodes) *node, x ...*tensors.Tensor) piece {
	tree := must.Value(c.Params().Under(paths...))
	p := piece{name: name, v: []*tensors.Tensor{v}, fn: func(in nodes) nodes {
		in, n := slices.Clone(in), len(tree)
		for i, x := range in {
			if x.DType().IsFloat() {
				in[i] = graph.ConvertDType(x, dtype)
			}
		}
		return nodes{graph.ConvertDType(apply(tree.As(dtype).Nodes(in[:n]), in[n:]), dtypes.Float32)}
	}}
	for i, s := range tree {
		p.in = append(p.in, random(uint64(i), s.Shape.Dimensions...))
	}
	p.in = append(p.in, x...)
	return p
}

// block is a block of a configuration like tiny.
func block(name string, dtype dtypes.DType, change func(c *gpt.Config)) piece {
	c := tiny
	change(&c)
	activations := []int{batch, c.Seq, c.Width}
	return part(name, c, dtype, []string{"h0"}, random(99, activations...), func(p params.Nodes, x nodes) *node {
		return c.Block(p, 0, x[0], &gpt.Noise{Key: x[1]})
	}, random(50, activations...), tensors.FromScalar(uint32(7)))
}

func tokens(seed uint64) *tensors.Tensor {
	r, ids := rand.New(rand.NewPCG(seed, 1)), make([]int32, batch*tiny.Seq)
	for i := range ids {
		ids[i] = r.Int32N(int32(tiny.Vocab))
	}
	return tensors.FromFlatDataAndDimensions(ids, batch, tiny.Seq)
}

func models() []model {
	c, s, h, v := tiny.Width, tiny.Seq, tiny.Heads, tiny.Vocab
	float := 4 * batch * s // bytes of a number a position
	// QKV, the scores, the mixed values, the projection and the MLP's 4C; not its output, which no gradient needs.
	usual := float * (3*c + h*s + c + c + 4*c)
	activations := []int{batch, s, c}
	return []model{
		{block("gpt", dtypes.Float32, func(c *gpt.Config) {}), usual, false},
		{block("bf16", dtypes.BFloat16, func(c *gpt.Config) { c.Dropout = 0.3 }), usual / 2, false},
		{part("bf16_mlp", tiny, dtypes.BFloat16, []string{"h0.up", "h0.down"}, random(97, activations...),
			func(p params.Nodes, x nodes) *node {
				return tiny.MLP(p, "h0", x[0])
			}, random(50, activations...)), float / 2 * 4 * c, true},
		{block("llama", dtypes.Float32, func(c *gpt.Config) {
			c.Gated, c.Norm, c.Positions, c.KVHeads, c.NoBias, c.Dropout = true, gpt.RMSNorm, gpt.Rotary, 2, true, 0.3
		}), usual + float*(-c+4*c), true}, // half of the keys and values, and the gate
		{block("fp8", dtypes.Float32, func(c *gpt.Config) {
			c.Matmul = precision.Matmul{Operands: precision.E4M3, Gradients: precision.E5M2, Scaled: true}
		}), usual, false},
		// The plan's barriers are saved: queries, keys and values, from which the scores are recomputed, and the mixed
		// values both before and after they are divided by the scores' sum.
		{block("selective", dtypes.Float32, func(c *gpt.Config) { c.Recompute = "selective" }), usual + float*(-h*s+c),
			false},
		// Operands of linear layers and of the activation function are saved as codes, one byte per element and one
		// float per row, except those of the first layer, which depend on the input alone. Nothing else of the MLP's 4C
		// is saved.
		{block("int8", dtypes.Float32, func(c *gpt.Config) { c.Compress = "int8" }),
			float * (3*c + h*s + c + c + 2*(c/4+1) + 2*(4*c/4+1)), false},
		{block("recomputed", dtypes.Float32, func(c *gpt.Config) { c.Recompute = "block" }), 0, false},
		{part("embedding", tiny, dtypes.Float32, tiny.EmbedPaths(), random(98, activations...),
			func(p params.Nodes, x nodes) *node {
				return tiny.Embed(p, x[0], nil)
			}, tokens(1)), 0, false},
		{part("loss", tiny, dtypes.Float32, tiny.HeadPaths(), tensors.FromScalar(float32(1)),
			func(p params.Nodes, x nodes) *node {
				return gpt.CrossEntropy(tiny.Head(p, x[0]), x[1])
			}, random(51, activations...), tokens(2)), float * v, true},
		// What the kernel has made: its output and two numbers of each query.
		{block("flash", dtypes.Float32, func(c *gpt.Config) { c.Flash = true }), usual - float*h*s + float*2*h, true},
		{part("loops", tiny, dtypes.Float32, []string{"h0.qkv"}, random(99, activations...),
			func(p params.Nodes, x nodes) *node {
				q, k, v := tiny.QKV(p, "h0", x[0])
				y := flash.Attention(q, k, v,
					flash.Options{Implementation: flash.Blocks, Block: flash.Block{Queries: 4, Keys: 3}})
				return graph.Reshape(y, batch, s, c)
			}, random(50, activations...)), float * (3*c + c + 2*h), true},
	}
}

// The gradients of two programs have the bits of one, if operations run as they are written.
func TestSplitModels(t *testing.T) {
	for _, m := range models() {
		if m.name == "flash" || m.name == "loops" { // which need XLA
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			got, kept := m.inTwo(t, devicetest.WithBarriers())
			sameBits(t, got, m.inOne(t, devicetest.WithBarriers()))
			m.check(t, kept)
		})
	}
}

func (m model) check(t *testing.T, kept []*tensors.Tensor) {
	t.Helper()
	bytes := 0
	for _, k := range kept {
		bytes += int(k.Shape().ByteSize())
	}
	if bytes != m.bytes {
		t.Errorf("%s keeps %d bytes, want %d", m.name, bytes, m.bytes)
	}
}

// XLA compiles each program on its own, so results differ by rounding: by at most 64 units in the last place of a
// float32 of the largest element's size. But each matmul, kernel and loop is in exactly one of the two programs.
func TestSplitModelsOnXLA(t *testing.T) {
	for _, m := range models() {
		if !m.onXLA {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			got, kept := m.inTwo(t, devicetest.One())
			m.check(t, kept)
			for i, want := range m.inOne(t, devicetest.One()) {
				if d := apart(got[i], want); !(d <= 64*0x1p-23) {
					t.Errorf("result %d differs by %g of its largest element", i, d)
				}
			}
			for _, op := range []string{"dot", "custom-call", "while"} {
				forward, backward, whole := m.count(t, "forward", op), m.count(t, "backward", op),
					m.count(t, "whole", op)
				if forward+backward != whole {
					t.Errorf("%d and %d operations %q in two programs, %d in one", forward, backward, op, whole)
				}
			}
		})
	}
}

// On a mesh, collectives are done once, in one of the two programs. An all-reduce of one operand, which GoMLX cannot
// copy, is among them.
func TestSplitMesh(t *testing.T) {
	mesh := must.Value(devicetest.Open(t, 2).Mesh(xla.Axis("data", 2)))
	fn := func(in nodes) nodes {
		y := collective.AllReduce(graph.Dot(in[0], in[1]).Product(), collective.Sum, "data")
		mean := y.Graph().Distributed().Along("data").AllReduceOne(graph.StopGradient(y), compute.ReduceOpSum)
		return nodes{graph.Mul(graph.Sin(y), graph.Cos(mean))}
	}
	s := autodiff.Split{Fn: fn, Of: both}
	x, w, v := random(1, 4, 3), random(2, 6, 4), random(3, 4, 4) // half of the rows for each device
	run := func(fn func(in nodes) nodes, args ...any) (results []*tensors.Tensor, allReduces int) {
		each := xla.Shard(0, "data")
		p := must.Value(xla.Compile(mesh, fn, xla.In(each).Gives(each)))
		defer p.Close()
		for _, out := range must.Value(p.Call(args...)) {
			results = append(results, must.Value(out.Merge()))
		}
		return results, must.Value(p.Collectives()).Of(xla.AllReduce).Count
	}
	args := func(of ...*tensors.Tensor) (own []any) {
		for _, a := range of {
			own = append(own, must.Value(a.LocalClone()))
		}
		return own
	}
	out, first := run(func(in nodes) nodes { y, kept := s.Forward(in); return append(y, kept...) }, args(x, w)...)
	got, second := run(func(in nodes) nodes { return s.Backward(in[:2], in[2:len(in)-1], in[len(in)-1:]) },
		args(append(append([]*tensors.Tensor{x, w}, out[1:]...), v)...)...)
	want, whole := run(func(in nodes) nodes {
		return graph.Gradient(graph.ReduceAllSum(graph.Mul(fn(in)[0], in[2])), in[:2]...)
	}, args(x, w, v)...)
	for i := range want {
		if d := apart(got[i], want[i]); !(d <= 4*0x1p-24) {
			t.Errorf("gradient %d differs by %g of its largest element", i, d)
		}
	}
	if first != 2 || first+second != whole {
		t.Errorf("%d and %d all-reduces in two programs, %d in one; want 2 in the first", first, second, whole)
	}
}

// Where the compiler cuts programs up, both are the same program for any number of devices.
func TestSplitAutoSharding(t *testing.T) {
	mesh := must.Value(devicetest.Open(t, 2).Mesh(xla.Axis("data", 2)))
	s := autodiff.Split{Fn: squared, Of: both}
	p := must.Value(xla.CompileAuto(mesh, func(x, w *node) nodes {
		out, kept := s.Forward(nodes{x, w})
		return s.Backward(nodes{x, w}, kept, out)
	}, xla.In(xla.Shard(0, "data"), xla.Replicated()).Gives(xla.Shard(0, "data"), xla.Replicated())))
	defer p.Close()
	// Here v is the output, so the gradient of (x·w)² in x is 2·(x·w)³·w, and the one in w is the sum of 2·(x·w)³·x.
	out := must.Value(p.Call([][]float32{{1}, {1}}, [][]float32{{2}}))
	for i, want := range [][]float32{{2 * 8 * 2, 2 * 8 * 2}, {2*8 + 2*8}} {
		if got := tensors.MustCopyFlatData[float32](must.Value(out[i].Merge())); !slices.Equal(got, want) {
			t.Errorf("gradient %d is %v, want %v", i, got, want)
		}
	}
}

// inThree returns the gradients of a piece by two programs after the forward one: the last input's by the first of
// them, as in a pipeline stage. If nothing was saved, all is recomputed.
func (p piece) inThree(t *testing.T, on compute.Backend, kept []*tensors.Tensor) (grads, left []*tensors.Tensor) {
	t.Helper()
	s := p.split()
	slices.Reverse(s.Of)
	of := func(in nodes) (own, v, known, rest nodes) {
		n, m := len(p.in), len(p.in)+len(p.v)
		if kept != nil {
			known = append(nodes{}, in[m:m+len(kept)]...)
		}
		return in[:n], in[n:m], known, in[m+len(kept):]
	}
	first := func(in nodes) nodes {
		own, v, known, _ := of(in)
		early, left := s.BackwardFirst(1, own, known, v)
		return append(slices.Clone(early), left...)
	}
	later := func(in nodes) nodes {
		own, v, known, left := of(in)
		return s.BackwardLater(1, own, known, v, left)
	}
	args := slices.Concat(p.in, p.v, kept)
	early := run(t, on, p.program("first"), first, args...)
	left = early[1:]
	rest := run(t, on, p.program("later"), later, slices.Concat(args, left)...)
	grads = append(early[:1:1], rest...)
	slices.Reverse(grads)
	return grads, left
}

// The gradients of three programs have the same bits as those of one, if operations run as they are written, whether
// the forward program saves something or all is recomputed.
func TestLater(t *testing.T) {
	leaving := 0
	check := func(p piece) {
		forward := run(t, devicetest.WithBarriers(), p.program("forward"), p.forward, p.in...)
		want := p.inOne(t, devicetest.WithBarriers())[len(p.v):]
		for _, kept := range [][]*tensors.Tensor{append([]*tensors.Tensor{}, forward[len(p.v):]...), nil} {
			got, left := p.inThree(t, devicetest.WithBarriers(), kept)
			sameBits(t, got, want)
			if len(left) > 0 {
				leaving++
			}
		}
	}
	for seed := range uint64(40) {
		if check(randomPiece(seed)); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if leaving < 40 {
		t.Errorf("only %d of 80 leave something for later", leaving)
	}
	for _, m := range models() {
		if m.name != "flash" && m.name != "loops" { // which need XLA
			if check(m.piece); t.Failed() {
				t.Fatal(m.name)
			}
		}
	}
}

// TestLaterOnXLA compares the number of matmuls with that of one backward program: none is computed twice.
func TestLaterOnXLA(t *testing.T) {
	for _, m := range models() {
		if !m.onXLA || m.name == "loops" { // which cannot be copied
			continue
		}
		m.name += "_later"
		got, kept := m.inTwo(t, devicetest.One())
		grads, _ := m.inThree(t, devicetest.One(), append([]*tensors.Tensor{}, kept...))
		for i, want := range got[len(m.v):] {
			if d := apart(grads[i], want); !(d <= 64*0x1p-23) {
				t.Errorf("%s: gradient %d differs by %g of its largest element", m.name, i, d)
			}
		}
		for _, op := range []string{"dot", "custom-call"} {
			first, later, both := m.count(t, "first", op), m.count(t, "later", op), m.count(t, "backward", op)
			if first+later != both {
				t.Errorf("%s: %d and %d operations %q in two programs, %d in one", m.name, first, later, op, both)
			}
		}
	}
}

// TestLaterTakesGradients has both programs multiply the output gradient of the same matmul: only the first one
// computes it.
func TestLaterTakesGradients(t *testing.T) {
	p := piece{name: "once", in: []*tensors.Tensor{random(1, 64, 64), random(2, 64, 64)},
		v:  []*tensors.Tensor{random(3, 64, 64)},
		fn: func(in nodes) nodes { return nodes{graph.Tanh(graph.Dot(in[0], in[1]).Product())} }}
	_, kept := p.inTwo(t, devicetest.One())
	if _, left := p.inThree(t, devicetest.One(), kept); len(left) != 1 {
		t.Errorf("%d values are left, want 1", len(left))
	}
	for which, want := range map[string]int{"first": 1, "later": 0} {
		if n := p.count(t, which, "tanh"); n != want {
			t.Errorf("%d times tanh in the %s program, want %d", n, which, want)
		}
	}
}
