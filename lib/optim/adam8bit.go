package optim

import (
	"fmt"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
)

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
	if r.Block < 1 {
		return fmt.Errorf("optim: Adam8bit.Block is %d: set it to at least 1", r.Block)
	}
	return r.validate("Adam8bit")
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
