package precision_test

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/xla"
)

type matrix [][]float32

func filled(rows, columns int, f func(i, j int) float32) matrix {
	m := make(matrix, rows)
	for i := range m {
		m[i] = make([]float32, columns)
		for j := range m[i] {
			m[i][j] = f(i, j)
		}
	}
	return m
}

func ones(rows, columns int) matrix {
	return filled(rows, columns, func(int, int) float32 { return 1 })
}

func normal(seed uint64, rows, columns int, scale float64) matrix {
	r := rand.New(rand.NewPCG(seed, 11))
	return filled(rows, columns, func(int, int) float32 { return float32(r.NormFloat64() * scale) })
}

// Matmuls of a half type accumulate in float32, and the backward pass has operands of that half type. Accumulated in
// the type itself, 4097 ones give 2048 in FP16 and 256 in BF16.
func TestZeroMatmul(t *testing.T) {
	for name, backend := range backends() {
		for _, dtype := range []dtypes.DType{dtypes.BFloat16, dtypes.Float16} {
			out := run(t, backend, func(in nodes) nodes {
				x := precision.Cast(in, dtype)
				y := precision.Matmul{}.Dot(x[0], []int{-1}, nil, x[1], []int{0}, nil)
				grads := graph.Gradient(graph.ReduceAllSum(graph.ConvertDType(y, dtypes.Float32)), in...)
				products := 0
				for _, n := range y.Graph().Nodes() {
					if n.Type() != graph.NodeTypeDotGeneral {
						continue
					}
					products++
					for _, operand := range append(n.Inputs(), n) {
						if operand.DType() != dtype {
							t.Errorf("%s: a product has an operand or result of %s, want %s", name, operand.DType(),
								dtype)
						}
					}
				}
				if products != 3 {
					t.Errorf("%d products, want 3", products)
				}
				return append(nodes{graph.ConvertDType(y, dtypes.Float32)}, grads...)
			}, ones(2, 4097), ones(4097, 2))
			for i, least := range []float32{4096, 2, 2} {
				// Neither type has 4097: it would show that XLA left out a conversion.
				if got := floats(out[i])[0]; got != least {
					t.Errorf("%s, %s: result %d is %g, want %g", name, dtype, i, got, least)
				}
			}
		}
	}
}

// With a format that rounds nothing, flatten and Custom change nothing.
func TestDotAxes(t *testing.T) {
	for _, c := range []struct {
		l, r   []int
		lc, lb []int
		rc, rb []int
	}{
		{[]int{2, 3}, []int{3, 4}, []int{1}, nil, []int{0}, nil},
		{[]int{2, 5, 3}, []int{4, 3}, []int{-1}, nil, []int{-1}, nil},
		{[]int{3}, []int{3}, []int{0}, nil, []int{0}, nil},
		{[]int{2, 3}, []int{4}, nil, nil, nil, nil},
		{[]int{2, 3, 4, 5}, []int{5, 2, 6, 4}, []int{3}, []int{2, 0}, []int{0}, []int{3, 1}},
		{[]int{4, 2, 3}, []int{4, 5, 3}, []int{0, 2}, nil, []int{0, 2}, nil},
	} {
		step := func(m precision.Matmul, plain bool) func(nodes) nodes {
			return func(in nodes) nodes {
				l := graph.Sin(graph.IotaFull(in[0].Graph(), shape(c.l...)))
				r := graph.Cos(graph.IotaFull(in[0].Graph(), shape(c.r...)))
				l, r = graph.Add(l, in[0]), graph.Add(r, in[0])
				var y *node
				if plain {
					y = graph.DotGeneral(l, c.lc, c.lb, r, c.rc, c.rb)
				} else {
					y = m.Dot(l, c.lc, c.lb, r, c.rc, c.rb)
				}
				loss := graph.ReduceAllSum(graph.Mul(y, graph.Square(y)))
				return append(nodes{y}, graph.Gradient(loss, l, r)...)
			}
		}
		want := run(t, devicetest.PureGo(), step(precision.Matmul{}, true), float32(0))
		for _, m := range []precision.Matmul{{}, {Operands: precision.FP32}, {Accumulate: precision.FP32, Chunk: 2},
			{Accumulate: precision.FP32, Chunk: math.MaxInt}} {
			for i, got := range run(t, devicetest.PureGo(), step(m, false), float32(0)) {
				if !got.Shape().Equal(want[i].Shape()) {
					t.Errorf("%v: result %d has shape %s, want %s", c, i, got.Shape(), want[i].Shape())
					continue
				}
				near(t, "product", floats(got), floats(want[i]), 1e-5)
			}
		}
	}
}

// Contracting axes may be in any order, for which GoMLX's own gradient is wrong.
func TestDotAxesOutOfOrder(t *testing.T) {
	step := func(dot func(l, r *node) *node) func(nodes) nodes {
		return func(in nodes) nodes {
			y := dot(in[0], in[1])
			return append(nodes{y}, graph.Gradient(graph.ReduceAllSum(graph.Mul(y, graph.Square(y))), in...)...)
		}
	}
	l, r := normal(6, 3, 3, 1), normal(7, 3, 3, 1)
	want := run(t, devicetest.PureGo(),
		step(func(l, r *node) *node { return graph.ReduceAllSum(graph.Mul(l, graph.Transpose(r, 0, 1))) }), l, r)
	got := run(t, devicetest.PureGo(), step(func(l, r *node) *node {
		return precision.Matmul{}.Dot(l, []int{0, 1}, nil, r, []int{-1, 0}, nil)
	}), l, r)
	for i := range want {
		near(t, "product", floats(got[i]), floats(want[i]), 1e-5)
	}
}

func near(t *testing.T, name string, got, want []float32, tol float64) {
	t.Helper()
	largest := 0.0
	for _, w := range want {
		largest = max(largest, math.Abs(float64(w)))
	}
	for j := range want {
		if !(math.Abs(float64(got[j]-want[j])) <= tol*largest) {
			t.Fatalf("%s: element %d is %g, want %g", name, j, got[j], want[j])
		}
	}
}

// dumbMatmul is the definition for matrices a (M,K) and b (K,N) on the host.
type dumbMatmul precision.Matmul

func (m dumbMatmul) round(x matrix, f precision.Format) matrix {
	if f == (precision.Format{}) {
		return x
	}
	scale, largest := 1.0, 0.0
	for _, row := range x {
		for _, v := range row {
			largest = max(largest, math.Abs(float64(v)))
		}
	}
	if m.Scaled {
		for scale*largest < f.Largest()/4 { // until one more would lead beyond the upper half
			scale *= 2
		}
		for scale*largest >= math.Exp2(math.Floor(math.Log2(f.Largest()))) {
			scale /= 2
		}
	}
	return filled(len(x), len(x[0]), func(i, j int) float32 { return float32(f.Round(float64(x[i][j])*scale) / scale) })
}

func (m dumbMatmul) product(a, b matrix) matrix {
	return filled(len(a), len(b[0]), func(i, j int) float32 {
		if m.Accumulate == (precision.Format{}) {
			sum := 0.0
			for k := range b {
				sum += float64(a[i][k]) * float64(b[k][j])
			}
			return float32(sum)
		}
		sum := 0.0
		for k := 0; k < len(b); k += m.Chunk {
			part := 0.0
			for l := k; l < min(k+m.Chunk, len(b)); l++ {
				part += float64(a[i][l]) * float64(b[l][j])
			}
			sum = m.Accumulate.Round(float64(float32(sum + m.Accumulate.Round(float64(float32(part))))))
		}
		return float32(sum)
	})
}

func transpose(x matrix) matrix {
	return filled(len(x[0]), len(x), func(i, j int) float32 { return x[j][i] })
}

func flat(x matrix) (all []float32) {
	for _, row := range x {
		all = append(all, row...)
	}
	return all
}

func TestMatmulAgainstPlainGo(t *testing.T) {
	a, b, v := normal(1, 4, 11, 0.02), normal(2, 11, 3, 3), normal(3, 4, 3, 1e-3)
	for _, m := range []precision.Matmul{
		{Operands: precision.TF32, Gradients: precision.TF32},
		{Operands: precision.E4M3},
		{Gradients: precision.E5M2},
		{Operands: precision.E4M3, Gradients: precision.E5M2, Scaled: true},
		{Operands: precision.INT8, Scaled: true},
		{Accumulate: precision.BF16, Chunk: 1},
		{Operands: precision.FP16, Gradients: precision.FP16, Accumulate: precision.FP16, Chunk: 4},
	} {
		d := dumbMatmul(m)
		ra, rb, rv := d.round(a, m.Operands), d.round(b, m.Operands), d.round(v, m.Gradients)
		want := []matrix{d.product(ra, rb), d.product(rv, transpose(rb)), d.product(transpose(ra), rv)}
		tol := 1e-6
		if m.Accumulate != (precision.Format{}) {
			tol = 2 * m.Accumulate.Epsilon() // sums in another order may round the other way once
		}
		step := func(in nodes, checkpoint bool) nodes {
			x := in[0]
			if checkpoint {
				x = x.Checkpoint()
			}
			y := m.Dot(x, []int{1}, nil, in[1], []int{0}, nil)
			dl, dr := m.DotGradients(x, in[1], in[2])
			out := append(nodes{y}, graph.Gradient(graph.ReduceAllSum(graph.Mul(y, in[2])), in[0], in[1])...)
			return append(out, y, dl, dr)
		}
		for name, backend := range backends() {
			if name == "XLA" && !m.Scaled && m.Chunk != 4 {
				continue // compiling takes its time
			}
			out := run(t, backend, func(in nodes) nodes {
				out := step(in, false)
				if name == "XLA" && m.Gradients == precision.E5M2 {
					out = append(out, step(in, true)...)
				}
				return out
			}, a, b, v)
			for i := range out {
				near(t, name, floats(out[i]), flat(want[i%3]), tol)
			}
		}
	}
}

// With Scaled, numbers that are not finite stay and do not affect the rest, which is scaled by its own largest number,
// up to float32's. This holds for operands and gradients.
func TestScaledExtremes(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	tensors := []struct {
		power float64 // of two, at or below the largest
		x     []float32
	}{
		{2, []float32{inf, nan, -inf, 3, -1e-3, 0.3}},
		{0x1p127, []float32{math.MaxFloat32, 3e38, -1e38, 3e30, 0, 2e38}}, // the first may become 2¹²⁸
		{0x1p-100, []float32{0x1.8p-100, -0x1p-101, 1e-31, 0, 0, 0}},
		{0x1p-126, []float32{0x1.8p-126, -0x1p-126, 0, 0, 0, 0}},
		{1, []float32{0, 0, nan, 0, 0, 0}}, // any power will do
	}
	least := precision.Format{Exponent: 2, Mantissa: 1} // to 3
	formats := []precision.Format{precision.E4M3, precision.E5M2, precision.INT8, precision.BF16, least}
	var in []any
	for _, c := range tensors {
		column := make(matrix, len(c.x))
		for i, x := range c.x {
			column[i] = []float32{x}
		}
		in = append(in, column)
	}
	for name, backend := range backends() {
		formats := formats
		if name == "XLA" {
			formats = formats[:1] // compiling takes its time
		}
		out := run(t, backend, func(in nodes) (out nodes) {
			one := graph.Ones(in[0].Graph(), shape(1, 1))
			for _, f := range formats {
				m := precision.Matmul{Operands: f, Gradients: f, Scaled: true}
				for _, x := range in {
					y := m.Dot(x, []int{1}, nil, one, []int{0}, nil)
					out = append(out, y, graph.Gradient(graph.ReduceAllSum(graph.Mul(y, graph.StopGradient(x))), x)[0])
				}
			}
			return out
		}, in...)
		for i, f := range formats {
			top := math.Exp2(math.Floor(math.Log2(f.Largest())) - 1)
			for j, c := range tensors {
				for k, got := range out[2*(len(tensors)*i+j):][:2] {
					scale := top / max(c.power, top*0x1p-126)
					if f == precision.BF16 {
						scale = 1
					}
					for l, x := range c.x {
						want := x
						if x-x == 0 { // finite
							want = float32(f.Round(float64(x)*scale) / scale)
						}
						if g := floats(got)[l]; g != want && !(g != g && want != want) {
							t.Errorf("%s, %+v, result %d of %g: element %d is %g, want %g", name, f, k, c.x, l, g, want)
						}
					}
				}
			}
		}
	}
}

// Sums in a half type stop growing where an addend is less than half of the last place, in the backward pass too.
func TestAccumulate(t *testing.T) {
	const n = 300
	for chunk, want := range map[int]float32{1: 256, 64: 300} {
		m := precision.Matmul{Accumulate: precision.BF16, Chunk: chunk}
		out := run(t, devicetest.PureGo(), func(in nodes) nodes {
			forward := m.Dot(in[0], []int{1}, nil, in[0], []int{1}, nil)
			wide := m.Dot(in[0], []int{0}, nil, in[1], []int{0}, nil) // (n,n): the gradient of in[1] sums over n
			return append(nodes{forward}, graph.Gradient(graph.ReduceAllSum(wide), in[1])...)
		}, ones(1, n), ones(1, n))
		for i := range out {
			if got := floats(out[i])[0]; got != want {
				t.Errorf("%d ones in chunks of %d: result %d is %g, want %g", n, chunk, i, got, want)
			}
		}
	}
}

func TestMatmulOnMesh(t *testing.T) {
	policy := must.Get(precision.ParsePolicy("fp8"))(t)
	step := func(x, w *node) *node {
		in := precision.Cast(nodes{x.Checkpoint(), w}, policy.Compute)
		y := policy.Matmul.Dot(in[0], []int{1}, nil, in[1], []int{0}, nil)
		return graph.Gradient(graph.ReduceAllSum(graph.ConvertDType(graph.Square(y), dtypes.Float32)), x)[0]
	}
	mesh := must.Get(devicetest.Open(t, 2).Mesh(xla.Axis("data", 2)))(t)
	all := xla.Shard(0, "data")
	p := must.Get(xla.Compile(mesh, step, xla.In(all, xla.Replicated()).Gives(all)))(t)
	defer p.Close()
	x, w := normal(4, 4, 8, 1), normal(5, 8, 3, 1)
	out := must.Get(p.Call(x, w))(t)
	joined := must.Get(out[0].Merge())(t)
	want := run(t, devicetest.One(), func(in nodes) nodes { return nodes{step(in[0], in[2]), step(in[1], in[2])} },
		x[:2], x[2:], w)
	for i := range want { // each device scales by its own shard
		near(t, "shard", floats(joined)[16*i:16*i+16], floats(want[i]), 0)
	}
}

func TestMatmulAsData(t *testing.T) {
	m := precision.Matmul{Operands: precision.E4M3, Gradients: precision.E5M2, Scaled: true}
	text, err := json.Marshal(m)
	if err != nil || string(text) != `{"operands":"e4m3","gradients":"e5m2","scaled":true}` {
		t.Errorf("written %s, %v", text, err)
	}
	var read precision.Matmul
	if err := json.Unmarshal(text, &read); err != nil || read != m {
		t.Errorf("read %+v, %v", read, err)
	}
	for want, m := range map[string]precision.Matmul{
		"Matmul.Operands: ":        {Operands: precision.Format{Exponent: 1, Mantissa: 1}},
		"Matmul.Gradients: ":       {Gradients: precision.Format{Name: "x"}},
		"Matmul.Accumulate: ":      {Accumulate: precision.Format{Name: "x"}, Chunk: 1},
		"Chunk is 0: set it to at": {Accumulate: precision.BF16},
		"Chunk is 3 but":           {Chunk: 3},
	} {
		if err := m.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want %q", m, err, want)
		}
		if _, err := try(devicetest.PureGo(), func(in nodes) nodes {
			return nodes{m.Dot(in[0], []int{0}, nil, in[0], []int{0}, nil)}
		}, []float32{1}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: Dot's error %v, want %q", m, err, want)
		}
	}
	for want, axes := range map[string][2][]int{
		"of dimensions [2] and [3]": {{0}, {1}},
		"of dimensions [2] and []":  {{0}, {}},
		"name each once":            {{0, -2}, {0, 1}},
	} {
		if _, err := try(devicetest.PureGo(), func(in nodes) nodes {
			return nodes{precision.Matmul{Operands: precision.BF16}.Dot(in[0], axes[0], nil, in[0], axes[1], nil)}
		}, ones(2, 3)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("axes %v: error %v, want %q", axes, err, want)
		}
	}
}
