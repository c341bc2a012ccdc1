package recompute

import (
	"slices"

	"github.com/shardbook/shardbook/lib/step"
)

// Blocks saves only the input of each block for the backward pass, and recomputes its forward pass right before (Chen
// et al. 2016, "Training Deep Nets with Sublinear Memory Cost", §4.1). A block whose backward pass directly follows its
// forward pass is not recomputed.
func Blocks(p *step.Plan) *step.Plan {
	return recomputed(p, func(passes []step.Op, i int) []int {
		if before := passes[max(i-1, 0)]; before.Kind == step.Forward && before.Block == passes[i].Block &&
			before.Micro == passes[i].Micro {
			return nil
		}
		return []int{passes[i].Block}
	})
}

// Stages saves, for each micro-batch, only the input of each group of consecutive blocks on a rank, and recomputes
// these blocks before their backward passes (Huang et al. 2019, "GPipe", §2.3).
func Stages(p *step.Plan) *step.Plan {
	return recomputed(p, func(passes []step.Op, i int) (blocks []int) {
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

// follows reports whether a backward pass continues with the result of another.
func follows(before, op step.Op) bool {
	return (before.Kind == step.Backward || before.Kind == step.InputGrad) && before.Kind == op.Kind &&
		before.Micro == op.Micro && before.Block == op.Block+1
}

// recomputed inserts recomputations before backward passes; which returns the blocks before the i-th of the rank's
// passes.
func recomputed(p *step.Plan, which func(passes []step.Op, i int) []int) *step.Plan {
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
