package sequence_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/flash"
	"github.com/shardbook/shardbook/lib/flash/online"
	"github.com/shardbook/shardbook/lib/recompute"
	"github.com/shardbook/shardbook/lib/sequence"
	"github.com/shardbook/shardbook/lib/xla"
)

func TestMain(m *testing.M) { devicetest.Main(m) }

type nodes = []*graph.Node

// problem is one call of attention with its inputs, for a number of ring and Ulysses ranks.
type problem struct {
	group               sequence.Group
	ring, ulysses       int
	b, tokens, h, k, d  int
	dtype               dtypes.DType
	causal              bool
	window              int
	engine              flash.Implementation
	checkpoint          bool      // recompute attention in the backward pass
	q, key, value, dout []float64 // rounded to the type
}

func (p problem) String() string {
	return fmt.Sprintf("%+v ring=%d ulysses=%d %s B=%d T=%d H=%d K=%d D=%d causal=%v window=%d", p.group, p.ring,
		p.ulysses, p.dtype, p.b, p.tokens, p.h, p.k, p.d, p.causal, p.window)
}

func (p problem) options() flash.Options {
	return flash.Options{Mask: flash.Mask{Causal: p.causal, Window: p.window}, Implementation: p.engine}
}

// filled returns the problem with random inputs.
func (p problem) filled() problem {
	r := rand.New(rand.NewPCG(uint64(p.tokens), uint64(p.h)))
	normal := func(n int) []float64 {
		x := make([]float64, n)
		for i := range x {
			if x[i] = float64(float32(r.NormFloat64())); p.dtype == dtypes.BFloat16 {
				x[i] = float64(bfloat16.FromFloat64(x[i]).Float32())
			}
		}
		return x
	}
	p.q, p.dout = normal(p.b*p.tokens*p.h*p.d), normal(p.b*p.tokens*p.h*p.d)
	p.key, p.value = normal(p.b*p.tokens*p.k*p.d), normal(p.b*p.tokens*p.k*p.d)
	return p
}

// args are q, k, v and dout, of all tokens.
func (p problem) args() []*tensors.Tensor {
	cast := func(x []float64, heads int) *tensors.Tensor {
		t := tensors.FromShape(shapes.Make(p.dtype, p.b, p.tokens, heads, p.d))
		t.MustMutableFlatData(func(flat any) {
			for i := range x {
				switch flat := flat.(type) {
				case []float64:
					flat[i] = x[i]
				case []float32:
					flat[i] = float32(x[i])
				case []bfloat16.BFloat16:
					flat[i] = bfloat16.FromFloat64(x[i])
				}
			}
		})
		return t
	}
	return []*tensors.Tensor{cast(p.q, p.h), cast(p.key, p.k), cast(p.value, p.k), cast(p.dout, p.h)}
}

// result is the output and the gradients of q, k and v, each (B,T,heads,D), in the order of the sequence.
type result [4][]float64

var resultNames = [4]string{"output", "dq", "dk", "dv"}

// errors returns the largest error of each part, or NaN.
func (r result) errors(want result) (worst [4]float64) {
	for i := range r {
		for j, x := range r[i] {
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

// exact is the result in float64.
func (p problem) exact() result {
	r := result{make([]float64, len(p.q)), make([]float64, len(p.q)), make([]float64, len(p.key)),
		make([]float64, len(p.key))}
	sees := func(i, j int) bool {
		far := i - j
		return (!p.causal || far >= 0) && (p.window == 0 || max(far, -far) < p.window)
	}
	for b := range p.b {
		for h := range p.h {
			g := h / (p.h / p.k)
			at := func(token, heads, head int) int { return ((b*p.tokens+token)*heads + head) * p.d }
			head := func(x []float64, heads, head int) (y []float64) {
				for t := range p.tokens {
					y = append(y, x[at(t, heads, head):][:p.d]...)
				}
				return y
			}
			add := func(to, x []float64, heads, head int) {
				for i, x := range x {
					to[at(i/p.d, heads, head)+i%p.d] += x
				}
			}
			q, k, v, scale := head(p.q, p.h, h), head(p.key, p.k, g), head(p.value, p.k, g), 1/math.Sqrt(float64(p.d))
			out, _ := online.Reference(q, k, v, p.d, p.d, scale, sees)
			dq, dk, dv := online.ReferenceGradients(q, k, v, head(p.dout, p.h, h), p.d, p.d, scale, sees)
			add(r[0], out, p.h, h)
			add(r[1], dq, p.h, h)
			add(r[2], dk, p.k, g)
			add(r[3], dv, p.k, g)
		}
	}
	return r
}

func wide(x *tensors.Tensor) (y []float64) {
	x.MustConstFlatData(func(flat any) {
		switch flat := flat.(type) {
		case []float64:
			y = append(y, flat...)
		case []float32:
			for _, x := range flat {
				y = append(y, float64(x))
			}
		case []bfloat16.BFloat16:
			for _, x := range flat {
				y = append(y, float64(x.Float32()))
			}
		}
	})
	return y
}

// build is the graph function of each device; in are q, k, v and dout of all tokens.
func (p problem) build(in nodes) nodes {
	mine := make(nodes, 4)
	for i, x := range in {
		mine[i] = p.group.Take(x, 1)
	}
	attend := func(in nodes) nodes { return nodes{p.group.Attention(in[0], in[1], in[2], p.tokens, p.options())} }
	var out *graph.Node
	if p.checkpoint {
		out = recompute.Call(attend, mine[:3]...)[0]
	} else {
		out = attend(mine)[0]
	}
	return append(nodes{out}, graph.Gradient(graph.ReduceAllSum(graph.Mul(out, mine[3])), mine[:3]...)...)
}

// compile makes one program of several problems with the same axes.
func compile(t testing.TB, b *xla.Backend, problems []problem) *xla.Program {
	t.Helper()
	p := problems[0]
	mesh := must.Value(b.Mesh(xla.Axis("ring", p.ring), xla.Axis("heads", p.ulysses)))
	program := must.Value(xla.Compile(mesh, func(in nodes) (out nodes) {
		for i, p := range problems {
			out = append(out, p.build(in[4*i:4*i+4])...)
		}
		return out
	}, xla.In(xla.Replicated()).Gives(xla.Shard(1, "ring", "heads"))))
	t.Cleanup(program.Close)
	return program
}

// run returns the problems' results in the order of the sequence, without padding.
func run(t testing.TB, b *xla.Backend, problems ...problem) ([]result, *xla.Program) {
	t.Helper()
	program := compile(t, b, problems)
	var args []any
	for _, p := range problems {
		for _, x := range p.args() {
			args = append(args, x)
		}
	}
	out := must.Value(program.Call(args...))
	results := make([]result, len(problems))
	for i, p := range problems {
		for j := range 4 {
			joined := must.Value(out[4*i+j].Merge())
			results[i][j] = p.inOrder(wide(joined), joined.Shape().Dim(1), joined.Shape().Dim(2)*p.d)
		}
	}
	return results, program
}

// inOrder permutes (B,tokens of all devices,width) to the order of the sequence, and drops padding.
func (p problem) inOrder(x []float64, n, width int) []float64 {
	y := make([]float64, p.b*p.tokens*width)
	positions := p.places(n)
	for b := range p.b {
		for i, at := range positions {
			if at < p.tokens {
				copy(y[(b*p.tokens+at)*width:][:width], x[(b*n+i)*width:])
			}
		}
	}
	return y
}

// places lists the positions of all devices' n tokens, by ring rank; Ulysses ranks have theirs in order.
func (p problem) places(n int) (positions []int) {
	for rank := range p.ring {
		positions = append(positions, p.group.Placement.Positions(n, p.ring, rank)...)
	}
	return positions
}
