package optim

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
)

// AdamWOptimizer is Adam (Kingma & Ba 2015, "Adam: A Method for Stochastic Optimization", algorithm 1) with decoupled
// weight decay (Loshchilov & Hutter 2019, "Decoupled Weight Decay Regularization", algorithm 2); make it with [AdamW]
// or [Adam] and change its settings. For gradient g at step t = 1, 2, …:
//
//	m ← β₁m + (1−β₁)g
//	v ← β₂v + (1−β₂)g²
//	w ← w − LR·( m/(1−β₁ᵗ) / (√(v/(1−β₂ᵗ)) + Eps) + WeightDecay·w )
//
// Its states are "m" and "v", both of the parameter's shape.
type AdamWOptimizer struct {
	// LR is the learning rate, about the largest change of an element in one step; for an element whose gradient is
	// rarely nonzero, up to (1−β₁)/√(1−β₂) times that (Kingma & Ba 2015, §2.1). At least 0.
	LR float64
	// Beta1 and Beta2 are the decay of the running means of the gradient and of its square, in [0,1). Such a mean
	// averages about 1/(1−β) steps.
	Beta1, Beta2 float64
	// Eps is added to the root of the mean square, so that a small one does not cause a large step. At least 0; with 0,
	// an element whose gradient has always been 0 becomes NaN.
	Eps float64
	// WeightDecay·LR is the fraction by which each element shrinks in one step. At least 0; 0 is plain Adam.
	WeightDecay float64
}

// AdamW returns the optimizer with the given learning rate, betas 0.9 and 0.999, eps 1e-8, and weight decay 0.01 for
// every parameter. The reference model is trained with a learning rate of 3e-4.
func AdamW(lr float64) AdamWOptimizer {
	return AdamWOptimizer{LR: lr, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01}
}

// Adam is [AdamW] without weight decay.
func Adam(lr float64) AdamWOptimizer {
	r := AdamW(lr)
	r.WeightDecay = 0
	return r
}

// Validate implements Optimizer.
func (r AdamWOptimizer) Validate() error { return r.validate("AdamW") }

func (r AdamWOptimizer) validate(name string) error {
	return checkSettings(name, setting{"LR", r.LR, 0, math.Inf(1)},
		setting{"Beta1", r.Beta1, 0, 1}, setting{"Beta2", r.Beta2, 0, 1},
		setting{"Eps", r.Eps, 0, math.Inf(1)}, setting{"WeightDecay", r.WeightDecay, 0, math.Inf(1)})
}

// States implements Optimizer: "m" and "v".
func (r AdamWOptimizer) States(param params.Spec, part Part) []State {
	return Elementwise(param, part, "m", "v")
}

// Update implements Optimizer.
func (r AdamWOptimizer) Update(u Update) (*graph.Node, []*graph.Node) {
	w, g := u.begin(r)
	change, m, v := r.change(w, g, u.States[0], u.States[1], u.Step)
	return u.descend(w, change, r.LR), []*graph.Node{m, v}
}

// change returns the update, which the learning rate multiplies, and the new moments.
func (r AdamWOptimizer) change(w, g, m, v, step *graph.Node) (change, newM, newV *graph.Node) {
	m, v = running(m, g, r.Beta1), running(v, graph.Square(g), r.Beta2)
	mean := graph.Div(m, correction(r.Beta1, step, m.DType()))
	square := graph.Div(v, correction(r.Beta2, step, v.DType()))
	direction := graph.Div(mean, graph.AddScalar(graph.Sqrt(square), r.Eps))
	return decayed(direction, w, r.WeightDecay), m, v
}

// correction returns 1−βᵗ, the bias of a running mean that started at zero after t steps. It is computed in float64: in
// float32, 1−0.999¹ would have only four correct digits, and half precision cannot count the steps.
func correction(beta float64, step *graph.Node, dtype dtypes.DType) *graph.Node {
	t := graph.ConvertDType(step, dtypes.Float64)
	power := graph.Pow(graph.Scalar(step.Graph(), dtypes.Float64, beta), t)
	return graph.ConvertDType(graph.OneMinus(power), dtype)
}

// LAMBOptimizer is LAMB (You et al. 2020, "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes",
// algorithm 2 with φ the identity): Adam with steps proportional to each parameter's norm, for large batches; make it
// with [LAMB]. With AdamW's update c, weight decay included:
//
//	w ← w − LR·‖w‖/‖c‖·c
//
// with Euclidean norms over the full parameter. The quotient is 1 where either norm is 0, as in the authors' code. The
// settings and states are AdamW's; a step changes a parameter by LR times its norm.
type LAMBOptimizer AdamWOptimizer

// LAMB returns the optimizer with the given learning rate, betas 0.9 and 0.999, eps 1e-6 and weight decay 0.01.
func LAMB(lr float64) LAMBOptimizer {
	return LAMBOptimizer{LR: lr, Beta1: 0.9, Beta2: 0.999, Eps: 1e-6, WeightDecay: 0.01}
}

// Validate implements Optimizer.
func (r LAMBOptimizer) Validate() error { return AdamWOptimizer(r).validate("LAMB") }

// States implements Optimizer: "m" and "v".
func (r LAMBOptimizer) States(param params.Spec, part Part) []State {
	return Elementwise(param, part, "m", "v")
}

// Update implements Optimizer.
func (r LAMBOptimizer) Update(u Update) (*graph.Node, []*graph.Node) {
	w, g := u.begin(r)
	change, m, v := AdamWOptimizer(r).change(w, g, u.States[0], u.States[1], u.Step)
	// The quotient of the norms is that of the root mean squares.
	size, length := u.piece().rms(w), u.piece().rms(change)
	either := graph.Equal(graph.Mul(graph.Sign(size), graph.Sign(length)), graph.ScalarZero(w.Graph(), w.DType()))
	trust := graph.Where(either, graph.ScalarOne(w.Graph(), w.DType()), graph.Div(size, length))
	return u.descend(w, graph.Mul(change, trust), r.LR), []*graph.Node{m, v}
}

// Adam8bitOptimizer is AdamW with 8-bit moments (Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization");
// make it with [Adam8bit]. Between steps a moment is stored as one scale per block of elements, their largest absolute
// value, and one code per element, which is the element divided by the scale as an index into [DynamicMap] (signed for
// m, unsigned for v). A step decodes the moments, computes AdamW in full precision, and encodes the new moments,
// rounded to the nearest code.
//
// It departs from the paper in one point: a v greater than 0 is never rounded to 0, but to at least the smallest other
// code. In the paper a v below 1.6·10⁻⁷ of the largest in its block becomes 0 while its m may not, and m/(√0+Eps) can
// be thousands of times LR (the zero-point problem of Li et al. 2023, "Memory Efficient Optimizers with 4-bit States").
// Here such an element moves less than with AdamW, and rounding makes no step more than about 3 times as long.
//
// Its states are the codes "m" and "v", of the parameter's shape, and "m.max" and "v.max", one number for each block. A
// parameter with fewer than Least elements in all has AdamW's states.
//
// Blocks are consecutive elements of a rank's part in row-major order; the last may be shorter. Shards compute exactly
// the step of the full parameter if each consists of full blocks; otherwise the results differ by the quantization: see
// [Joins]. A [Cut] with a Length is refused, since ranks that share an index would have it in different blocks.
type Adam8bitOptimizer struct {
	AdamWOptimizer
	// Block is the number of elements per scale, at least 1. Least is the smallest number of elements, over all shards,
	// of a parameter that is quantized.
	Block, Least int
}

// Adam8bit returns the optimizer with the settings of [AdamW] and, as bitsandbytes has them, blocks of 256 (the paper
// has 2048: fewer scales, larger errors) and Least 4096.
func Adam8bit(lr float64) Adam8bitOptimizer {
	return Adam8bitOptimizer{AdamWOptimizer: AdamW(lr), Block: 256, Least: 4096}
}

// Validate implements Optimizer.
func (r Adam8bitOptimizer) Validate() error {
	return cmp.Or(positive("Adam8bit.Block", r.Block), r.validate("Adam8bit"))
}

// States implements Optimizer: "m", "m.max", "v" and "v.max", or "m" and "v" for a small parameter.
func (r Adam8bitOptimizer) States(param params.Spec, part Part) []State {
	if r.small(param) {
		return r.AdamWOptimizer.States(param, part)
	}
	p := pieceOf(param, part)
	var states []State
	for _, name := range []string{"m", "v"} {
		codes := p.state(param, name, dtypes.Uint8)
		joined := min(codes.Axis, 0) // the ranks' blocks are concatenated
		scales := params.New(codes.Name+".max", computeType(param),
			blocks(product(codes.Shape.Dimensions), max(1, r.Block)))
		states = append(states, codes, State{scales, joined})
	}
	return states
}

// Update implements Optimizer.
func (r Adam8bitOptimizer) Update(u Update) (*graph.Node, []*graph.Node) {
	w, g := u.begin(r)
	if r.small(u.Spec) {
		change, m, v := r.change(w, g, u.States[0], u.States[1], u.Step)
		return u.descend(w, change, r.LR), []*graph.Node{m, v}
	}
	if c, ok := u.Part.(Cut); ok && c.Length > 0 {
		panic(fmt.Errorf("optim: Adam8bit quantizes blocks of %s, but ranks that share some of its indices would put "+
			"them into different blocks: choose another optimizer for it, or a Cut without Length", u.Spec))
	}
	p := u.piece()
	g = p.part.clean(g, p.full) // padding in a block would change its scale
	signed, unsigned := DynamicMap(true), DynamicMap(false)
	m := decode(u.States[0], u.States[1], signed, r.Block)
	v := decode(u.States[2], u.States[3], unsigned, r.Block)
	change, m, v := r.change(w, g, m, v, u.Step)
	mCodes, mMax := encode(m, signed, r.Block)
	vCodes, vMax := encode(v, unsigned, r.Block)
	// Code 0 is for 0 alone.
	vCodes = graph.Max(vCodes, graph.ConvertDType(graph.GreaterThan(v, graph.ZerosLike(v)), dtypes.Uint8))
	return u.descend(w, change, r.LR), []*graph.Node{mCodes, mMax, vCodes, vMax}
}

func (r Adam8bitOptimizer) block(param params.Spec) int {
	if r.small(param) {
		return 0
	}
	return max(1, r.Block)
}

func (r Adam8bitOptimizer) small(param params.Spec) bool {
	return product(param.Shape.Dimensions) < r.Least
}

// DynamicMap returns the 256 code values of dynamic (tree) quantization in ascending order: signed from about −0.993 to
// 1, or unsigned from 0 to 1 (Dettmers 2016, "8-Bit Approximations for Parallelism in Deep Learning", §3.1; unsigned:
// Dettmers et al. 2022, §2.2). It equals bitsandbytes' create_dynamic_map.
//
// Besides 0 and 1 there are seven intervals, each from a tenth of a power of ten, 10⁻⁶ to 1, to that power. Each is
// divided into twice as many equal parts as the one below, and the values are the middles of the parts. A signed map
// has half as many parts, and both signs of each value.
func DynamicMap(signed bool) [256]float32 {
	table := []float32{0, 1}
	for i := range 7 {
		parts := 2 << i
		if signed {
			parts = 1 << i
		}
		for k := range parts {
			middle := 0.1 + 0.9*(float64(k)+0.5)/float64(parts)
			x := float32(middle * math.Pow10(i-6))
			table = append(table, x)
			if signed {
				table = append(table, -x)
			}
		}
	}
	slices.Sort(table)
	return [256]float32(table)
}

// blocks returns the number of blocks that n elements are in.
func blocks(n, block int) int { return (n + block - 1) / block }

// encode quantizes x to uint8 codes of x's dimensions, and the largest absolute value of each block. In a block with a
// NaN or an infinity, all elements decode to NaN or an infinity.
func encode(x *graph.Node, table [256]float32, block int) (codes, largest *graph.Node) {
	n := x.Shape().Size()
	b := blocks(n, block)
	flat := graph.Pad(graph.Reshape(x, n), graph.ScalarZero(x.Graph(), x.DType()), compute.PadAxis{End: b*block - n})
	rows := graph.Reshape(flat, b, block)
	largest = graph.ReduceMax(graph.Abs(rows), 1)
	scale := graph.Where(graph.Equal(largest, graph.ZerosLike(largest)), graph.OnesLike(largest), largest)
	scaled := graph.Div(rows, graph.InsertAxes(scale, 1))
	scaled = graph.Slice(graph.Reshape(scaled, b*block), graph.AxisRange(0, n))
	codes = graph.ConvertDType(nearest(scaled, table), dtypes.Uint8)
	return graph.Reshape(codes, x.Shape().Dimensions...), largest
}

// decode is the inverse of encode, in the type of the largest values.
func decode(codes, largest *graph.Node, table [256]float32, block int) *graph.Node {
	n := codes.Shape().Size()
	g, b := codes.Graph(), blocks(n, block)
	scale := graph.BroadcastToDims(graph.InsertAxes(largest, 1), b, block)
	scale = graph.Slice(graph.Reshape(scale, b*block), graph.AxisRange(0, n))
	at := graph.ConvertDType(graph.Reshape(codes, n, 1), dtypes.Int32)
	scaled := graph.Gather(graph.ConvertDType(graph.Const(g, table[:]), largest.DType()), at)
	return graph.Reshape(graph.Mul(scaled, scale), codes.Shape().Dimensions...)
}

// nearest returns, for each x of a vector, the index of the nearest number in the ascending table; the lower one of
// two. That is the number of the 255 midpoints of neighbours below x, which a binary search finds bit by bit.
func nearest(x *graph.Node, table [256]float32) *graph.Node {
	middles := make([]float32, 255)
	for i := range middles {
		middles[i] = float32((float64(table[i]) + float64(table[i+1])) / 2)
	}
	g := x.Graph()
	among := graph.ConvertDType(graph.Const(g, middles), x.DType())
	below := graph.Zeros(g, shapes.Make(dtypes.Int32, x.Shape().Size()))
	for bit := 128; bit > 0; bit /= 2 {
		more := graph.AddScalar(below, bit)
		middle := graph.Gather(among, graph.InsertAxes(graph.AddScalar(more, -1), -1))
		below = graph.Where(graph.LessThan(middle, x), more, below)
	}
	return below
}
