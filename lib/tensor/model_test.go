package tensor_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/tensor"
	"github.com/shardbook/shardbook/lib/xla"
)

func TestMain(m *testing.M) { devicetest.Main(m) }

// variant is a kind of tensor parallelism.
type variant struct {
	name  string
	group tensor.Group
}

var variants = []variant{
	{"tensor", tensor.Group{Axis: "tensor"}},
	{"sequence", tensor.Group{Axis: "tensor", Sequence: true}},
	{"overlap", tensor.Group{Axis: "tensor", Sequence: true, Overlap: true}},
}

// array is an unsharded array on the host, row-major.
type array struct {
	dims   []int
	values []float64
}

func random(r *rand.Rand, scale float64, dims ...int) array {
	a := array{dims: dims}
	size := 1
	for _, d := range dims {
		size *= d
	}
	for range size {
		a.values = append(a.values, float64(float32(r.NormFloat64()*scale)))
	}
	return a
}

// part is a rank's shard of the array, computed without lib/params.
func (a array) part(cut *params.Cut, rank int) array {
	if cut == nil {
		return a
	}
	inner, outer := 1, 1
	for i, d := range a.dims {
		if i < cut.Axis {
			outer *= d
		} else if i > cut.Axis {
			inner *= d
		}
	}
	p := array{dims: append([]int{}, a.dims...)}
	p.dims[cut.Axis] = len(cut.Index[rank])
	for o := range outer {
		for _, at := range cut.Index[rank] {
			for i := range inner {
				if at < 0 {
					p.values = append(p.values, 0)
				} else {
					p.values = append(p.values, a.values[(o*a.dims[cut.Axis]+at)*inner+i])
				}
			}
		}
	}
	return p
}

// stacked is the shards of all ranks, stacked along a new first axis, in float32.
func (a array) stacked(cut *params.Cut, ranks int) *tensors.Tensor {
	var all array
	for r := range ranks {
		p := a.part(cut, r)
		all = array{append([]int{ranks}, p.dims...), append(all.values, p.values...)}
	}
	return all.tensor()
}

// tensor is the array in float32.
func (a array) tensor() *tensors.Tensor {
	var flat []float32
	for _, v := range a.values {
		flat = append(flat, float32(v))
	}
	return tensors.FromFlatDataAndDimensions(flat, a.dims...)
}

// onRanks compiles a graph function of one rank's shards. All inputs and outputs of the program are stacked along a new
// first axis, except the last `same` inputs, which are the same on every rank.
func onRanks(t *testing.T, mesh *xla.Mesh, same, inputs int, f func(in []*graph.Node) []*graph.Node) *xla.Program {
	t.Helper()
	in := make([]xla.Placement, inputs)
	for i := range in {
		if i < inputs-same {
			in[i] = xla.Shard(0, "tensor")
		}
	}
	p := must(xla.Compile(mesh, func(in []*graph.Node) []*graph.Node {
		for i := range in[:len(in)-same] {
			in[i] = graph.Squeeze(in[i], 0)
		}
		out := f(in)
		for i, o := range out {
			out[i] = graph.ExpandAxes(graph.ConvertDType(o, dtypes.Float32), 0)
		}
		return out
	}, xla.In(in...).Gives(xla.Shard(0, "tensor"))))
	t.Cleanup(p.Close)
	return p
}

// call runs a program of onRanks and returns each output's values, of one rank after another.
func call(t *testing.T, p *xla.Program, args ...any) [][]float32 {
	t.Helper()
	out := must(p.Call(args...))
	values := make([][]float32, len(out))
	for i, o := range out {
		all := must(o.Merge())
		values[i] = tensors.MustCopyFlatData[float32](all)
	}
	return values
}

// distance is the largest difference of two lists relative to scale, the largest value of the array, since the rounding
// of a sum does not depend on how small its result is.
func distance(t *testing.T, what string, got []float32, want []float64, scale float64) float64 {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d values, want %d", what, len(got), len(want))
		return 0
	}
	worst := 0.0
	for i := range got {
		d := math.Abs(float64(got[i]) - want[i])
		if math.IsNaN(d) {
			return d
		}
		worst = max(worst, d/scale)
	}
	return worst
}

func largest(values []float64) float64 {
	m := 1e-3
	for _, v := range values {
		m = max(m, math.Abs(v))
	}
	return m
}

func dot(x, w *graph.Node) *graph.Node { return graph.DotGeneral(x, []int{-1}, nil, w, []int{0}, nil) }

// must returns x, and panics with an error.
func must[T any](x T, err error) T {
	if err != nil {
		panic(err)
	}
	return x
}

// transformer is a block of plain attention and an MLP with an embedding and a head.
type transformer struct{ batch, tokens, width, heads, keys, hidden, vocab int }

const headWidth = 3

func (c transformer) tree() params.Tree {
	f := dtypes.Float32
	qkv := (c.heads + 2*c.keys) * headWidth
	return params.Tree{
		params.New("tok", f, c.vocab, c.width), params.New("pos", f, c.tokens, c.width),
		params.New("norm.g", f, c.width),
		params.New("qkv.w", f, c.width, qkv), params.New("qkv.b", f, qkv),
		params.New("proj.w", f, c.heads*headWidth, c.width), params.New("proj.b", f, c.width),
		params.New("up.w", f, c.width, c.hidden), params.New("gate.w", f, c.width, c.hidden),
		params.New("up.b", f, c.hidden),
		params.New("down.w", f, c.hidden, c.width), params.New("down.b", f, c.width),
		params.New("head.w", f, c.width, c.vocab),
	}
}

func (c transformer) rules() tensor.Rules {
	return tensor.Rules{
		{Name: "tok", Cut: tensor.Padded(0)}, {Name: "head.w", Cut: tensor.Padded(-1)},
		{Name: "qkv.*", Cut: tensor.Heads(-1, c.heads, c.keys, headWidth)},
		{Name: "proj.w", Cut: tensor.Heads(0, c.heads, 0, headWidth)},
		{Name: "up.*", Cut: tensor.Even(-1)}, {Name: "gate.w", Cut: tensor.Even(-1)},
		{Name: "down.w", Cut: tensor.Even(0)},
	}
}

// loss is the mean cross-entropy; with a zero group it is the graph of one device.
func (c transformer) loss(t tensor.Group, cuts []*params.Cut, tree params.Tree, nodes []*graph.Node, tokens,
	targets *graph.Node) *graph.Node {
	p := must(params.Zip(tree, nodes))
	replicated := []string{"pos", "norm.g", "proj.b", "down.b"}
	var ws []*graph.Node
	for _, name := range replicated {
		ws = append(ws, p.Get(name))
	}
	for i, w := range t.Replicated(ws) {
		p[replicated[i]] = w
	}
	for _, name := range []string{"qkv.w", "qkv.b"} {
		p[name] = t.SumCopies(p[name], -1, cuts[tree.Index(name)])
	}
	bias := func(x *graph.Node, name string) *graph.Node {
		return graph.Add(x, graph.ExpandLeftToRank(p[name], x.Rank()))
	}
	norm := func(x *graph.Node) *graph.Node {
		square := graph.AddScalar(graph.ReduceAndKeep(graph.Square(x), graph.ReduceMean, -1), 1e-3)
		return graph.Mul(graph.Div(x, graph.Sqrt(square)), graph.ExpandLeftToRank(p["norm.g"], 3))
	}

	x := graph.Add(t.Embed(p["tok"], tokens), graph.ExpandAxes(t.Tokens(p["pos"], 0), 0))
	qkv := bias(t.Columns(norm(x), []*graph.Node{p["qkv.w"]}, dot)[0], "qkv.b")
	x = graph.Add(x, bias(t.Rows(c.attention(qkv, p["proj.w"].Shape().Dim(0)/headWidth), p["proj.w"], dot), "proj.b"))
	up := t.Columns(norm(x), []*graph.Node{p["up.w"], p["gate.w"]}, dot)
	h := graph.Mul(graph.Tanh(bias(up[0], "up.b")), graph.Sigmoid(up[1]))
	x = graph.Add(x, bias(t.Rows(h, p["down.w"], dot), "down.b"))
	logits := t.Columns(norm(x), []*graph.Node{p["head.w"]}, dot)[0]
	return graph.ReduceAllMean(t.CrossEntropy(logits, targets, c.vocab))
}

// attention is causal, with that many query heads; the rest of qkv (B,T,…) are key and value heads.
func (c transformer) attention(qkv *graph.Node, heads int) *graph.Node {
	keys := (qkv.Shape().Dim(-1)/headWidth - heads) / 2
	cut := func(first, n int) *graph.Node { // (B,T,n,D)
		x := graph.SliceAxis(qkv, -1, graph.AxisRange(first*headWidth, (first+n)*headWidth))
		return graph.Reshape(x, c.batch, c.tokens, n, headWidth)
	}
	repeated := func(x *graph.Node) *graph.Node { // each key head once for each of its query heads
		x = graph.BroadcastToDims(graph.ExpandAxes(x, 3), c.batch, c.tokens, keys, heads/keys, headWidth)
		return graph.Reshape(x, c.batch, c.tokens, heads, headWidth)
	}
	// (B,H,T,T)
	scores := graph.DotGeneral(cut(0, heads), []int{3}, []int{0, 2}, repeated(cut(heads, keys)), []int{3}, []int{0, 2})
	square := shapes.Make(dtypes.Int32, scores.Shape().Dimensions...)
	later := graph.LessThan(graph.Iota(qkv.Graph(), square, 2), graph.Iota(qkv.Graph(), square, 3))
	scores = graph.Where(later, graph.MulScalar(graph.OnesLike(scores), -1e4), scores)
	// (B,H,T,D)
	y := graph.DotGeneral(graph.Softmax(scores, -1), []int{3}, []int{0, 1}, repeated(cut(heads+keys, keys)), []int{1},
		[]int{0, 2})
	return graph.Reshape(graph.TransposeAllAxes(y, 0, 2, 1, 3), c.batch, c.tokens, heads*headWidth)
}

// The loss and every gradient of a Transformer are those of one device that computes in float64 on another backend, for
// any number of devices and every kind of tensor parallelism.
func TestEqualsOneDevice(t *testing.T) {
	backend := devicetest.Open(t, 8)
	tensorParallel, sequence, overlap := variants[0], variants[1], variants[2]
	for _, s := range []struct {
		ranks, heads, keys int
		dtype              dtypes.DType
		bound              float64 // relative to the largest value of each array
		variants           []variant
	}{
		{1, 2, 1, dtypes.Float32, 0x1p-18, []variant{overlap}}, // all kinds are the same graph
		{2, 4, 2, dtypes.Float32, 0x1p-18, variants},
		{3, 3, 1, dtypes.Float32, 0x1p-18, []variant{tensorParallel, overlap}}, // all ranks replicate the key head
		{4, 4, 2, dtypes.Float32, 0x1p-18, []variant{sequence, overlap}},       // pairs do
		{8, 8, 2, dtypes.Float32, 0x1p-18, []variant{tensorParallel, sequence}},
		{2, 2, 1, dtypes.BFloat16, 0x1p-4, []variant{tensorParallel, overlap}}, // one device is 2^-4.9 from float64
	} {
		c := transformer{batch: 2, tokens: 2 * s.ranks, width: 4, heads: s.heads, keys: s.keys, hidden: 6 * s.ranks,
			vocab: 13}
		tree := c.tree()
		cuts := must(c.rules().Cuts(tree, s.ranks))
		r := rand.New(rand.NewPCG(1, uint64(s.ranks)))
		var full []array
		for _, spec := range tree {
			full = append(full, random(r, 0.5, spec.Shape.Dimensions...))
			if s.dtype == dtypes.BFloat16 {
				for i, v := range full[len(full)-1].values {
					full[len(full)-1].values[i] = float64(math.Float32frombits(math.Float32bits(float32(v)) &^ 0xffff))
				}
			}
		}
		tokens, targets := make([]int32, c.batch*c.tokens), make([]int32, c.batch*c.tokens)
		for i := range tokens {
			tokens[i], targets[i] = r.Int32N(int32(c.vocab)), r.Int32N(int32(c.vocab))
		}
		targets[0] = -1 // has no loss
		text := []any{tensors.FromFlatDataAndDimensions(tokens, c.batch, c.tokens),
			tensors.FromFlatDataAndDimensions(targets, c.batch, c.tokens)}

		lossAndGradients := func(group tensor.Group, as dtypes.DType) func(in []*graph.Node) []*graph.Node {
			return func(in []*graph.Node) []*graph.Node {
				nodes := make([]*graph.Node, len(tree))
				for i := range nodes {
					nodes[i] = graph.ConvertDType(in[i], as)
				}
				loss := c.loss(group, cuts, tree.As(as), nodes, in[len(tree)], in[len(tree)+1])
				return append([]*graph.Node{loss}, graph.Gradient(loss, nodes...)...)
			}
		}
		var args []*tensors.Tensor
		for _, a := range full {
			args = append(args, tensors.FromFlatDataAndDimensions(a.values, a.dims...))
		}
		reference := func(in []*graph.Node) []*graph.Node {
			loss := c.loss(tensor.Group{}, make([]*params.Cut, len(tree)), tree.As(dtypes.Float64), in[:len(tree)],
				in[len(tree)], in[len(tree)+1])
			return append([]*graph.Node{loss}, graph.Gradient(loss, in[:len(tree)]...)...)
		}
		wants := must(devicetest.CallOn(devicetest.PureGo(), reference,
			append(args, text[0].(*tensors.Tensor), text[1].(*tensors.Tensor))...))

		for _, w := range s.variants {
			t.Run(fmt.Sprintf("%d devices, %v, %s", s.ranks, s.dtype, w.name), func(t *testing.T) {
				axes := []xla.MeshAxis{xla.Axis("tensor", s.ranks)}
				if s.ranks == 2 { // among other axes
					axes = []xla.MeshAxis{xla.Axis("data", 2), axes[0]}
				}
				p := onRanks(t, must(backend.Mesh(axes...)), 2, len(tree)+2, lossAndGradients(w.group, s.dtype))
				var args []any
				for i, a := range full {
					args = append(args, a.stacked(cuts[i], s.ranks))
				}
				got := call(t, p, append(args, text...)...)
				worst := 0.0
				for i, values := range got {
					want, cut, name := array{values: tensors.MustCopyFlatData[float64](wants[i])}, (*params.Cut)(nil),
						"loss"
					if i > 0 {
						want.dims, cut, name = tree[i-1].Shape.Dimensions, cuts[i-1], tree[i-1].Name
					}
					length := len(values) / s.ranks
					for rank := range s.ranks {
						d := distance(t, name, values[rank*length:(rank+1)*length], want.part(cut, rank).values,
							largest(want.values))
						if worst = max(worst, d); !(d <= s.bound) {
							t.Errorf("%s on rank %d is %g of its largest value from that of one device, want at most "+
								"%g", name, rank, d, s.bound)
						}
					}
				}
				t.Logf("at most 2^%.1f of the largest values; %s", math.Log2(worst), fmt.Sprint(must(p.Collectives())))
			})
		}
	}
}
