package optim

import (
	"fmt"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
)

// Adam8bitOptimizer is AdamWOptimizer with moments of one byte for each element (Dettmers et al. 2022, "8-bit Optimizers via
// Block-wise Quantization"); make it with [Adam8bit]. Between steps a moment is, for each block of elements, their
// largest absolute value and for each element the code of its share of that in a table ([DynamicMap], signed for m,
// unsigned for v). A step decodes the moments, makes AdamW's step with the new ones in full precision, and encodes
// those, each as the nearest number of the table.
//
// In one thing it departs from the paper: a v greater than 0 never becomes 0, but at least the table's least other
// number. In the paper a v below 1.6·10⁻⁷ of the largest of its block becomes 0 while its m may survive, and m/(√0+Eps)
// can be a step of thousands of LR (the zero-point problem of Li et al. 2023, "Memory Efficient Optimizers with 4-bit
// States"). Here such an element moves less than it would by AdamW, and rounding makes no step more than about 3 times
// as long.
//
// Its states are the codes "m" and "v", of the parameter's shape, and "m.max" and "v.max", one number for each block;
// or AdamW's own for a parameter of fewer than Least elements in all.
//
// Blocks are runs of a part's own elements in row-major order, the last perhaps shorter. So shards make exactly the
// whole's step if each is a run of whole blocks, and else one that differs as the quantisation does: [Joins] says so. A
// [Cut] with a Length is refused, since ranks that have an index in common would have it in different blocks.
type Adam8bitOptimizer struct {
	AdamWOptimizer
	// Block is the number of elements that share a scale, at least 1; Least is how many elements a parameter has,
	// shards together, that is quantised.
	Block, Least int
}

// Adam8bit returns the rule with the settings of [AdamW] and, as bitsandbytes has them, blocks of 256 (the paper's are
// 2048: fewer bytes for scales, and coarser) and at least 4096 elements.
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
		joined := min(codes.Axis, 0) // blocks are put together one part after the other
		scales := params.New(codes.Name+".max", computeType(param), blocks(product(codes.Shape.Dimensions), max(1, r.Block)))
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
		panic(fmt.Errorf("optim: Adam8bit quantises blocks of %s, which ranks that have some of its indices would "+
			"have otherwise: choose another "+
			"rule for it, or a Cut without Length", u.Spec))
	}
	p := u.piece()
	g = p.part.clean(g, p.whole) // padding in a block would act on its scale
	signed, unsigned := DynamicMap(true), DynamicMap(false)
	m := decode(u.States[0], u.States[1], signed, r.Block)
	v := decode(u.States[2], u.States[3], unsigned, r.Block)
	change, m, v := r.change(w, g, m, v, u.Step)
	mCodes, mMax := encode(m, signed, r.Block)
	vCodes, vMax := encode(v, unsigned, r.Block)
	// code 0 is of 0 alone
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
