package recompute

import (
	"slices"

	"github.com/shardbook/shardbook/lib/step"
)

// Blocks has each block keep no more than its input for the backward pass, and compute its forward pass again right
// before that (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", §4.1). A block whose backward pass
// follows its forward pass at once keeps what it has.
func Blocks(p *step.Plan) *step.Plan {
	return again(p, func(passes []step.Op, i int) []int {
		if before := passes[max(i-1, 0)]; before.Kind == step.Forward && before.Block == passes[i].Block &&
			before.Micro == passes[i].Micro {
			return nil
		}
		return []int{passes[i].Block}
	})
}

// Stages keeps of a micro-batch only the input of each run of blocks that a rank has one after another, and computes
// these again before their backward passes (Huang et al. 2019, "GPipe", §2.3).
func Stages(p *step.Plan) *step.Plan {
	return again(p, func(passes []step.Op, i int) (blocks []int) {
		if i > 0 && follows(passes[i-1], passes[i]) {
			return nil
		}
		for j := i; j < len(passes) && (j == i || follows(passes[j-1], passes[j])); j++ {
			blocks = append(blocks, passes[j].Block)
		}
		slices.Sort(blocks)
		return blocks
	})
}

// follows says whether a backward pass goes on with what another one has made.
func follows(before, op step.Op) bool {
	return (before.Kind == step.Backward || before.Kind == step.InputGrad) && before.Kind == op.Kind &&
		before.Micro == op.Micro &&
		before.Block == op.Block+1
}

// again inserts forward passes before backward passes; which says of which blocks, before the i-th of the rank's
// passes.
func again(p *step.Plan, which func(passes []step.Op, i int) []int) *step.Plan {
	q := p.Clone()
	for r, list := range p.Ranks {
		passes := slices.DeleteFunc(slices.Clone(list), func(op step.Op) bool { return !op.Kind.Pass() })
		n := 0
		q.Insert(r, func(_ int, op step.Op) (before, behind []step.Op) {
			if op.Kind.Pass() {
				n++
			}
			if op.Kind != step.Backward && op.Kind != step.InputGrad {
				return nil, nil
			}
			for _, b := range which(passes, n-1) {
				before = append(before, step.Op{Kind: step.Recompute, Block: b, Micro: op.Micro})
			}
			return before, nil
		})
	}
	return q
}
