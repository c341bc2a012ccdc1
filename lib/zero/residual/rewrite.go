package residual

import (
	"slices"

	"github.com/shardbook/shardbook/lib/step"
)

// Partition rewrites a plan for P_a (ZeRO §6.1): the devices of each rank along the axis, which have the same
// activations, save only a shard of a block's input after its forward pass and gather it before the block's next pass.
// Inputs of the first block, which are the batch, and of blocks whose next pass follows at once, stay full.
func Partition(p *step.Plan, axis string) *step.Plan {
	q := p.Clone()
	for r, list := range p.Ranks {
		next := map[int]int{} // of a forward pass, the position of the block's next pass
		for i, op := range list {
			if op.Kind != step.Forward || op.Block == 0 {
				continue
			}
			j := i + 1 + slices.IndexFunc(list[i+1:], func(o step.Op) bool {
				return o.Kind.Pass() && o.Kind != step.Update && o.Block == op.Block && o.Micro == op.Micro
			})
			if slices.ContainsFunc(list[i+1:j], func(o step.Op) bool { return o.Kind.Pass() }) {
				next[i] = j
			}
		}
		gathered := map[int]bool{}
		for _, j := range next {
			gathered[j] = true
		}
		q.Insert(r, func(i int, op step.Op) (before, behind []step.Op) {
			of := step.Op{What: step.Activation, Block: op.Block, Micro: op.Micro}
			if gathered[i] {
				of.Kind, of.Axis = step.Gather, axis
				before = append(before, of)
			}
			if _, ok := next[i]; ok {
				of.Kind = step.Free
				behind = append(behind, of)
			}
			return before, behind
		})
	}
	return q
}
