package flash_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/compute/dtypes/float16"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/flash"
	"github.com/shardbook/shardbook/lib/flash/online"
)

type (
	node  = graph.Node
	nodes = []*graph.Node
)

// problem is one call of attention with its inputs.
type problem struct {
	b, t, s, h, k, d, e int
	dtype               dtypes.DType
	causal              bool
	window              int
	scale               float64 // of Options
	qp, kp              []int32 // positions, or nil
	qs, ks              []int32 // segments, or nil
	q, key, v, dout     []float64
}

func (p problem) String() string {
	extra := ""
	if p.qp != nil {
		extra += " positions"
	}
	if p.qs != nil {
		extra += " segments"
	}
	return fmt.Sprintf("%s B=%d T=%d S=%d H=%d K=%d D=%d E=%d causal=%v window=%d%s", p.dtype, p.b, p.t, p.s, p.h, p.k,
		p.d, p.e, p.causal, p.window, extra)
}

// fill draws normal inputs, rounded to the type, whose scores are of about the given size.
func (p *problem) fill(r *rand.Rand, size float64) {
	normal := func(n int, size float64) []float64 {
		x := make([]float64, n)
		for i := range x {
			x[i] = rounded(r.NormFloat64()*size, p.dtype)
		}
		return x
	}
	p.q, p.key = normal(p.b*p.t*p.h*p.d, math.Sqrt(size)), normal(p.b*p.s*p.k*p.d, math.Sqrt(size))
	p.v, p.dout = normal(p.b*p.s*p.k*p.e, 1), normal(p.b*p.t*p.h*p.e, 1)
}

func rounded(x float64, dtype dtypes.DType) float64 {
	switch dtype {
	case dtypes.BFloat16:
		return float64(bfloat16.FromFloat64(x).Float32())
	case dtypes.Float16:
		return float64(float16.FromFloat64(x).Float32())
	case dtypes.Float32:
		return float64(float32(x))
	}
	return x
}

// positions returns n numbers, from first on.
func positions(n, first, step int) []int32 {
	all := make([]int32, n)
	for i := range all {
		all[i] = int32(first + i*step)
	}
	return all
}

// randomProblem has any shape, type and mask.
func randomProblem(r *rand.Rand) problem {
	pick := func(of ...int) int { return of[r.IntN(len(of))] }
	p := problem{b: 1 + r.IntN(2), t: 1 + r.IntN(pick(3, 20, 70, 150)), k: pick(1, 1, 2), d: pick(1, 3, 8, 8, 16, 40),
		causal: r.IntN(2) == 0}
	p.h, p.s, p.e = p.k*pick(1, 2, 3), p.t, p.d
	p.dtype = []dtypes.DType{dtypes.Float32, dtypes.Float32, dtypes.BFloat16, dtypes.Float16}[r.IntN(4)]
	if r.IntN(3) == 0 {
		p.s = 1 + r.IntN(pick(20, 150))
	}
	if r.IntN(4) == 0 {
		p.e = pick(1, 5, 32, 70)
	}
	if r.IntN(3) == 0 {
		p.window = 1 + r.IntN(p.s+3)
	}
	if r.IntN(4) == 0 {
		p.scale = 0.05 + r.Float64()
	}
	if r.IntN(4) == 0 {
		p.qp, p.kp = positions(p.t, r.IntN(40)-10, 1+r.IntN(2)), make([]int32, p.s)
		for i := range p.kp {
			p.kp[i] = int32(r.IntN(p.s))
		}
	}
	if r.IntN(4) == 0 {
		segments := func(n int) []int32 {
			x := make([]int32, p.b*n)
			for b := range p.b {
				at := int32(0)
				for i := range n {
					if r.IntN(1+n/3) == 0 {
						at++
					}
					x[b*n+i] = at
				}
			}
			return x
		}
		p.qs, p.ks = segments(p.t), segments(p.s)
		if p.t == p.s {
			p.ks = p.qs
		}
	}
	p.fill(r, []float64{0.3, 1, 1, 4}[r.IntN(4)])
	return p
}

func (p problem) visible(b, i, j int) bool {
	qp, kp := i+p.s-p.t, j
	if p.qp != nil {
		qp, kp = int(p.qp[i]), int(p.kp[j])
	}
	far := qp - kp
	return (!p.causal || far >= 0) && (p.window == 0 || far < p.window && -far < p.window) &&
		(p.qs == nil || p.qs[b*p.t+i] == p.ks[b*p.s+j])
}

func (p problem) scaleOf() float64 {
	if p.scale == 0 {
		return 1 / math.Sqrt(float64(p.d))
	}
	return p.scale
}

// result is the output, the log-sum-exp, and the gradients of q, k and v.
type result [5][]float64

var resultNames = [5]string{"output", "log-sum-exp", "dq", "dk", "dv"}

// exact is the result in float64.
func (p problem) exact() result {
	r := result{make([]float64, p.b*p.t*p.h*p.e), make([]float64, p.b*p.t*p.h), make([]float64, len(p.q)),
		make([]float64, len(p.key)), make([]float64, len(p.v))}
	head := func(x []float64, b, rows, heads, h, width int) []float64 {
		var y []float64
		for i := range rows {
			at := ((b*rows+i)*heads + h) * width
			y = append(y, x[at:at+width]...)
		}
		return y
	}
	add := func(to, x []float64, b, rows, heads, h, width int) {
		for i := range rows {
			for c := range width {
				to[((b*rows+i)*heads+h)*width+c] += x[i*width+c]
			}
		}
	}
	for b := range p.b {
		for h := range p.h {
			g := h / (p.h / p.k)
			q, k, v := head(p.q, b, p.t, p.h, h, p.d), head(p.key, b, p.s, p.k, g, p.d), head(p.v, b, p.s, p.k, g, p.e)
			sees := func(i, j int) bool { return p.visible(b, i, j) }
			out, lse := online.Reference(q, k, v, p.d, p.e, p.scaleOf(), sees)
			dq, dk, dv := online.ReferenceGradients(q, k, v, head(p.dout, b, p.t, p.h, h, p.e), p.d, p.e, p.scaleOf(),
				sees)
			add(r[0], out, b, p.t, p.h, h, p.e)
			add(r[1], lse, b, p.t, p.h, h, 1)
			add(r[2], dq, b, p.t, p.h, h, p.d)
			add(r[3], dk, b, p.s, p.k, g, p.d)
			add(r[4], dv, b, p.s, p.k, g, p.e)
		}
	}
	return r
}

// args are the problem's tensors: q, k, v, dout, and positions and segments if it has them.
func (p problem) args() []*tensors.Tensor {
	cast := func(x []float64, dims ...int) *tensors.Tensor {
		t := tensors.FromShape(shapes.Make(p.dtype, dims...))
		t.MustMutableFlatData(func(flat any) {
			for i, x := range x {
				switch flat := flat.(type) {
				case []float64:
					flat[i] = x
				case []float32:
					flat[i] = float32(x)
				case []bfloat16.BFloat16:
					flat[i] = bfloat16.FromFloat64(x)
				case []float16.Float16:
					flat[i] = float16.FromFloat64(x)
				}
			}
		})
		return t
	}
	args := []*tensors.Tensor{cast(p.q, p.b, p.t, p.h, p.d), cast(p.key, p.b, p.s, p.k, p.d),
		cast(p.v, p.b, p.s, p.k, p.e), cast(p.dout, p.b, p.t, p.h, p.e)}
	if p.qp != nil {
		args = append(args, tensors.FromFlatDataAndDimensions(p.qp, p.t), tensors.FromFlatDataAndDimensions(p.kp, p.s))
	}
	if p.qs != nil {
		args = append(args, tensors.FromFlatDataAndDimensions(p.qs, p.b, p.t),
			tensors.FromFlatDataAndDimensions(p.ks, p.b, p.s))
	}
	return args
}

// options returns the problem's options; in are the nodes of args.
func (p problem) options(in nodes) flash.Options {
	o := flash.Options{Mask: flash.Mask{Causal: p.causal, Window: p.window}, Scale: p.scale}
	rest := in[4:]
	if p.qp != nil {
		o.QueryPositions, o.KeyPositions, rest = rest[0], rest[1], rest[2:]
	}
	if p.qs != nil {
		o.QuerySegments, o.KeySegments = rest[0], rest[1]
	}
	return o
}

func (p problem) attention(in nodes, o flash.Options) nodes {
	part := flash.Attend(in[0], in[1], in[2], o)
	return p.results(in, flash.Attention(in[0], in[1], in[2], o), graph.Add(part.M, graph.Log(part.D)))
}

// results are the output, the log-sum-exp, and the gradients for the output gradient dout.
func (p problem) results(in nodes, out, lse *node) nodes {
	return append(nodes{out, lse}, graph.Gradient(graph.ReduceAllSum(graph.Mul(out, in[3])), in[:3]...)...)
}

// naive computes attention with all scores, in float32. For half types it rounds scores and weights, as a framework
// does.
func (p problem) naive(in nodes) nodes {
	g := in[0].Graph()
	wide := func(x *node) *node { return graph.ConvertDType(x, dtypes.Float32) }
	rounded := func(x *node) *node { return wide(graph.ConvertDType(x, p.dtype)) }
	o := p.options(in)
	group := p.h / p.k
	q := graph.Reshape(wide(in[0]), p.b, p.t, p.k, group, p.d)
	scores := rounded(graph.MulScalar(graph.Einsum("btkgd,bskd->bkgts", q, wide(in[1])), p.scaleOf())) // (B,K,G,T,S)
	column := func(x *node) *node { return graph.Reshape(x, -1, 1, 1, p.t, 1) }
	row := func(x *node) *node { return graph.Reshape(x, -1, 1, 1, 1, p.s) }
	qp, kp := graph.AddScalar(graph.Iota(g, shapes.Make(dtypes.Int32, p.t), 0), p.s-p.t),
		graph.Iota(g, shapes.Make(dtypes.Int32, p.s), 0)
	if p.qp != nil {
		qp, kp = o.QueryPositions, o.KeyPositions
	}
	far := graph.Sub(column(qp), row(kp))
	seen := graph.Equal(far, far)
	if p.causal {
		seen = graph.LogicalAnd(seen, graph.GreaterOrEqual(far, graph.ZerosLike(far)))
	}
	if p.window > 0 {
		seen = graph.LogicalAnd(seen, graph.LessThan(graph.Abs(far), graph.AddScalar(graph.ZerosLike(far), p.window)))
	}
	if p.qs != nil {
		seen = graph.LogicalAnd(seen, graph.Equal(column(o.QuerySegments), row(o.KeySegments)))
	}
	seen = graph.BroadcastToDims(seen, scores.Shape().Dimensions...)
	none := graph.BroadcastToDims(graph.Const(g, float32(-1e30)), scores.Shape().Dimensions...)
	scores = graph.Where(seen, scores, none)
	largest := graph.StopGradient(graph.ReduceAndKeep(scores, graph.ReduceMax, -1))
	weights := graph.Where(seen, graph.Exp(graph.Sub(scores, largest)), graph.ZerosLike(scores))
	sum := graph.ReduceAndKeep(weights, graph.ReduceSum, -1)
	lse := graph.Squeeze(graph.Add(largest, graph.Log(sum)), -1) // (B,K,G,T)
	sum = graph.Where(graph.Equal(sum, graph.ZerosLike(sum)), graph.OnesLike(sum), sum)
	out := graph.Einsum("bkgts,bske->btkge", rounded(graph.Div(weights, sum)), wide(in[2]))
	out = graph.ConvertDType(graph.Reshape(out, p.b, p.t, p.h, p.e), p.dtype)
	return p.results(in, out, graph.Reshape(graph.TransposeAllAxes(lse, 0, 3, 1, 2), p.b, p.t, p.h))
}

func toResult(out []*tensors.Tensor) (r result) {
	for i, x := range out {
		x.MustConstFlatData(func(flat any) {
			switch flat := flat.(type) {
			case []float64:
				r[i] = slices.Clone(flat)
			case []float32:
				r[i] = wide(flat, func(x float32) float64 { return float64(x) })
			case []bfloat16.BFloat16:
				r[i] = wide(flat, func(x bfloat16.BFloat16) float64 { return float64(x.Float32()) })
			case []float16.Float16:
				r[i] = wide(flat, func(x float16.Float16) float64 { return float64(x.Float32()) })
			}
		})
	}
	return r
}

func wide[T any](x []T, to func(T) float64) []float64 {
	y := make([]float64, len(x))
	for i := range x {
		y[i] = to(x[i])
	}
	return y
}

// errors returns the largest error of each part, or NaN.
func (r result) errors(want result) (worst [5]float64) {
	for i := range r {
		for j, x := range r[i] {
			if x == want[i][j] {
				continue
			}
			if e := math.Abs(x - want[i][j]); math.IsNaN(e) || e > worst[i] {
				worst[i] = e
			}
			if math.IsNaN(worst[i]) {
				break
			}
		}
	}
	return worst
}
