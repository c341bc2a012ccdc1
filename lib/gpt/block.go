package gpt

import (
	"fmt"
	"math"
	"slices"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/flash"
	"github.com/shardbook/shardbook/lib/fused"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/recompute"
	"github.com/shardbook/shardbook/lib/tensor"
)

// Embed returns the embeddings (B,T,C) of the tokens (B,T), of any integer type, plus, for learned positions, those of
// positions 0 to T-1. T may be less than Seq. A token outside of the vocabulary reads the nearest valid one. The noise
// may be nil. It panics if "tok" or "pos" is missing, tokens are not integers of rank 2 or T is more than Seq.
func (c Config) Embed(p params.Nodes, tokens *graph.Node, noise *Noise) *graph.Node {
	return c.oneDevice().embed(p, tokens, noise)
}

// embed is Embed for the device's tokens.
func (c layers) embed(p params.Nodes, tokens *graph.Node, noise *Noise) *graph.Node {
	if tokens.Rank() != 2 || tokens.Shape().Dim(1) > c.longest(tokens.Graph()) {
		panic(fmt.Errorf("gpt: tokens have shape %s: use (B,T) with T at most Config.Seq %d", tokens.Shape(), c.Seq))
	}
	p = c.sharded(tokens.Graph(), p, c.EmbedPaths()...)
	// Widened, so that the gradients of a token accumulate in float32 over all of its places in the batch.
	x := precision.Widen(c.tensor.Embed(p.Get("tok"), tokens)) // (B,T,C)
	if c.Positions != Rotary {
		pos := precision.Widen(p.Get("pos"))
		if c.hasAllTokens() {
			pos = graph.Slice(pos, graph.AxisRangeFromStart(tokens.Shape().Dim(1))) // (T,C)
		} else { // the positions of padding may be Seq or more
			at := graph.MinScalar(c.tokenPositions(x.Graph(), tokens.Shape().Dim(1)), c.Seq-1)
			pos = graph.Gather(pos, graph.InsertAxes(at, -1))
		}
		x = graph.Add(x, graph.ExpandLeftToRank(pos, 3))
	}
	return c.withTerm(c.dropTokens(graph.ConvertDType(x, p.Get("tok").DType()), noise, afterEmbedding), nil)
}

// Block returns the output (B,T,C) of Transformer block i, counted from 0, for x (B,T,C): attention and then the MLP,
// each on the normalized input and each added to it. Normalizing before each sub-layer keeps the gradients of a deep
// stack bounded (Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture"). The noise may be nil. It
// panics if a parameter of the block is missing or does not fit x.
func (c Config) Block(p params.Nodes, i int, x *graph.Node, noise *Noise) *graph.Node {
	plan := c.plan()
	return c.oneDevice().block(p, i, plan.Enter(i, x), noise, plan)
}

// block is Block after [recompute.Plan.Enter].
func (c layers) block(p params.Nodes, i int, x *graph.Node, noise *Noise, plan recompute.Plan) *graph.Node {
	at, noise := BlockName(i), noise.forLayer(i)
	saved := saved{plan, i}
	p = c.sharded(x.Graph(), p, at)
	x, term := c.term(x)
	y := c.attention(p, at, saved.after(recompute.Norm1, c.Normalize(p, at+".ln1", x)), noise, saved)
	x = saved.after(recompute.Mid, graph.Add(x, c.dropTokens(y, noise, afterAttention)))
	y = saved.after(recompute.Norm2, c.Normalize(p, at+".ln2", x))
	if c.mixtureAt(i) {
		var own *graph.Node
		y, own = c.experts(p, at, y, saved)
		term = graph.Add(term, own)
	} else {
		y = c.mlp(p, at, y, saved)
	}
	return saved.after(recompute.Down, c.withTerm(graph.Add(x, c.dropTokens(y, noise, afterMLP)), term))
}

// saved applies the recomputation plan to the activations of a block; the zero value changes nothing.
type saved struct {
	plan  recompute.Plan
	block int
}

// after takes an operation's output.
func (m saved) after(op recompute.Op, x *graph.Node) *graph.Node {
	if m.plan == nil {
		return x
	}
	return m.plan.After(m.block, op, x)
}

// within takes an intermediate result of an operation.
func (m saved) within(op recompute.Op, x *graph.Node) *graph.Node {
	if m.plan == nil {
		return x
	}
	return m.plan.Within(m.block, op, x)
}

// plan returns the plan of Config.Recompute, and panics if that is invalid.
func (c Config) plan() recompute.Plan {
	plan, err := c.Recompute.Plan(c.Layers)
	if err != nil {
		panic(fmt.Errorf("gpt: Config.Recompute: %w", err))
	}
	if c.Flash {
		plan = plan.FusedAttention()
	}
	return plan
}

// MLP is the MLP of the block at a path, from x (B,T,C) to (B,T,C): widen to Hidden, apply [Config.Activation], and
// project back. It panics if a parameter is missing or does not fit x.
func (c Config) MLP(p params.Nodes, at string, x *graph.Node) *graph.Node {
	return c.oneDevice().mlp(p, at, x, saved{})
}

func (c layers) mlp(p params.Nodes, at string, x *graph.Node, saved saved) *graph.Node {
	if !c.Gated && !c.NoBias && c.Activation != ReLU && c.Compress == "" {
		h := c.tensor.Columns(x, []*graph.Node{p.Get(at + ".up.w")}, c.matmul)[0]
		h = fused.BiasGELU(saved.after(recompute.Up, h), p.Get(at+".up.b"))
		return c.rows(p, at+".down", saved.after(recompute.Act, h), "")
	}
	paths := []string{at + ".up"}
	if c.Gated {
		paths = append(paths, at+".gate")
	}
	h := c.columns(p, x, paths...) // (B,T,hidden)
	for i := range h {
		h[i] = saved.after(recompute.Up, h[i])
	}
	return c.rows(p, at+".down", saved.after(recompute.Act, c.activate(h)), c.afterActivation())
}

func (c layers) attention(p params.Nodes, at string, x *graph.Node, noise *Noise, saved saved) *graph.Node {
	q, k, v := c.qkv(p, at, x)
	q, k, v = saved.after(recompute.QKV, q), saved.after(recompute.QKV, k), saved.after(recompute.QKV, v)
	y := saved.after(recompute.Mix, c.attend(q, k, v, noise, saved)) // (B,T,H,D)
	return c.rows(p, at+".o", graph.Reshape(y, y.Shape().Dim(0), y.Shape().Dim(1), y.Shape().Dim(2)*c.headWidth()),
		c.Compress)
}

// QKV returns the queries (B,T,H,D), keys and values (B,T,K,D) of the block at a path for x (B,T,C), computed by one
// matmul. With rotary positions, queries and keys are rotated for positions 0 to T−1. It panics if a parameter is
// missing or does not fit x.
func (c Config) QKV(p params.Nodes, at string, x *graph.Node) (q, k, v *graph.Node) {
	return c.oneDevice().qkv(p, at, x)
}

// qkv is QKV for the device's heads, and for all of its tokens.
func (c layers) qkv(p params.Nodes, at string, x *graph.Node) (q, k, v *graph.Node) {
	qkv := c.columns(p, x, at+".qkv")[0]
	b, t := qkv.Shape().Dim(0), qkv.Shape().Dim(1)
	queries, keys := c.heads(x.Graph())
	qkv = graph.Reshape(qkv, b, t, queries+2*keys, c.headWidth())
	part := func(from, n int) *graph.Node {
		return graph.Slice(qkv, graph.AxisRange(), graph.AxisRange(), graph.AxisRange(from, from+n))
	}
	q, k, v = part(0, queries), part(queries, keys), part(queries+keys, keys)
	if c.QKNorm {
		rms := Config{Norm: RMSNorm}
		q, k = rms.Normalize(p, at+".qnorm", q), rms.Normalize(p, at+".knorm", k)
	}
	if c.Positions == Rotary {
		positions := c.positions(x.Graph(), t)
		q, k = rotate(q, positions), rotate(k, positions)
	}
	return q, k, v
}

// CausalAttention is causal scaled dot-product attention (Vaswani et al. 2017, §3.2.1): softmax(q·kᵀ/√D)·v within each
// head, where a position attends to itself and those before. q and the result are (B,T,H,D), k and v (B,T,K,D) with a K
// that divides H: query head h uses key head h·K/H. It computes all scores, (B,H,T,T); the softmax is in float32 for
// half-precision inputs. It panics if the shapes do not fit.
func CausalAttention(q, k, v *graph.Node) *graph.Node { return layers{}.attend(q, k, v, nil, saved{}) }

func (c layers) attend(q, k, v *graph.Node, noise *Noise, saved saved) *graph.Node {
	if q.Rank() != 4 || k.Rank() != 4 || !k.Shape().Equal(v.Shape()) || q.Shape().Dim(2)%k.Shape().Dim(2) != 0 {
		panic(fmt.Errorf("gpt: queries have shape %s, keys %s, values %s: use (B,T,H,D), (B,T,K,D) and (B,T,K,D) with "+
			"a K that divides H", q.Shape(), k.Shape(), v.Shape()))
	}
	if c.contextParallel() {
		return c.sequence.Attention(q, k, v, c.Seq, flash.Causal())
	}
	if c.Flash {
		return flash.Attention(q, k, v, flash.Causal())
	}
	b, t, h, d := q.Shape().Dim(0), q.Shape().Dim(1), q.Shape().Dim(2), q.Shape().Dim(3)
	kv := k.Shape().Dim(2)
	q = graph.Reshape(graph.MulScalar(q, 1/math.Sqrt(float64(d))), b, t, kv, h/kv, d)
	scores := causal(precision.Widen(c.Matmul.Dot(q, []int{4}, []int{0, 2}, k, []int{3}, []int{0, 2}))) // (B,K,T,H/K,T)

	// Softmax. It divides by the sum after the second matmul, which has fewer outputs than weights. In half precision
	// it divides before, since weights that are not normalized might overflow.
	half := v.DType().IsHalfPrecision()
	largest := graph.StopGradient(graph.ReduceAndKeep(scores, graph.ReduceMax, -1))
	weights := saved.after(recompute.Scores, graph.Exp(saved.within(recompute.Scores, graph.Sub(scores, largest))))
	sum := graph.ReduceAndKeep(weights, graph.ReduceSum, -1) // (B,K,T,H/K,1)
	if half {
		weights = graph.Div(weights, sum)
	}
	weights = graph.ConvertDType(c.dropWeights(weights, noise), v.DType())
	y := c.Matmul.Dot(weights, []int{4}, []int{0, 1}, v, []int{1}, []int{0, 2}) // (B,K,T,H/K,D)
	if !half {
		y = graph.Div(saved.within(recompute.Mix, y), sum)
	}
	return graph.Reshape(graph.TransposeAllAxes(y, 0, 2, 1, 3, 4), b, t, h, d)
}

// causal sets the scores (B,K,T,H/K,T) of keys, on the last axis, after the query to −∞.
func causal(scores *graph.Node) *graph.Node {
	g, shape := scores.Graph(), scores.Shape()
	seen := graph.LowerTriangular(g, shape.Dim(-1)) // (T,T)
	seen = graph.BroadcastToDims(graph.InsertAxes(seen, 0, 0, 1), shape.Dimensions...)
	return graph.Where(seen, scores, graph.Infinity(g, scores.DType(), -1))
}

// Head returns the logits (B,T,V) for the last block's output x (B,T,C): the final normalization and a linear layer
// without bias, whose weights are the token table's transpose if it is tied. It panics if a parameter is missing or
// does not fit x.
func (c Config) Head(p params.Nodes, x *graph.Node) *graph.Node {
	return c.oneDevice().head(p, x)
}

// head is Head for the device's part of the vocabulary.
func (c layers) head(p params.Nodes, x *graph.Node) *graph.Node {
	p = c.sharded(x.Graph(), p, c.HeadPaths()...)
	x, _ = c.term(x)
	x = c.Normalize(p, "lnf", x)
	if c.Tied {
		return c.tensor.Columns(x, []*graph.Node{p.Get("tok")}, func(x, w *graph.Node) *graph.Node {
			return c.Matmul.Dot(x, []int{-1}, nil, w, []int{1}, nil)
		})[0]
	}
	return c.tensor.Columns(x, []*graph.Node{p.Get("head.w")}, c.matmul)[0]
}

// CrossEntropy returns the mean over all positions of −log softmax(logits)[target], in nats: a scalar, in float32 for
// half-precision logits. The logits are (B,T,V) and the targets (B,T), of any integer type. A target outside of the
// vocabulary contributes 0 ([Config.CheckBatch] allows negative ones). It panics if the shapes do not fit.
func CrossEntropy(logits, targets *graph.Node) *graph.Node {
	if l, t := logits.Shape(), targets.Shape(); l.Rank() != 3 || !slices.Equal(l.Dimensions[:2], t.Dimensions) {
		panic(fmt.Errorf("gpt: logits have shape %s and targets %s: use (B,T,V) and (B,T)", l, t))
	}
	return graph.ReduceAllMean(tensor.Group{}.CrossEntropy(logits, targets, logits.Shape().Dim(-1)))
}
