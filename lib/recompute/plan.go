package recompute

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gomlx/gomlx/core/graph"
)

// Plan says, for each block, of which operations the outputs are recomputed in the backward pass; the others are saved.
// What is recomputed is recomputed once, from the last saved output before it. The last block's output is always saved,
// since what follows the blocks needs it at once.
//
// A model calls [Plan.Enter] where it enters the blocks and [Plan.After] on the output of each operation. The values do
// not change, but tell GoMLX's reverse pass what to save (Node.Checkpoint). What is not saved is recomputed, including
// collectives, when the first gradient that needs it arrives.
type Plan []Set

// maxBlocks limits the blocks that a text may ask for.
const maxBlocks = 1 << 16

// Enter takes the input of block i where the model, or the stage in this program, begins with that block. It builds a
// graph, and panics if the plan has no such block.
func (p Plan) Enter(i int, x *graph.Node) *graph.Node {
	if p[i].Has(Norm1) {
		return checkpoint(x)
	}
	return x
}

// After takes the output of an operation of block i; call it for each output if there are several. It builds a graph,
// and panics if the plan has no such block.
func (p Plan) After(i int, op Op, x *graph.Node) *graph.Node {
	switch {
	case p.recomputes(i, op):
		return x
	case p.recomputesAfter(i, op):
		return checkpoint(x)
	case p.recomputesBefore(i, op):
		return x.StopCheckpoint()
	}
	return x
}

// Within takes an intermediate result of an operation of block i that the gradient of the rest of the operation needs:
// if the operation's inputs are recomputed, it would be recomputed too, although the output is saved. It builds a
// graph, and panics if the plan has no such block.
func (p Plan) Within(i int, op Op, x *graph.Node) *graph.Node {
	if !p.recomputes(i, op) && p.recomputesBefore(i, op) {
		return x.StopCheckpoint()
	}
	return x
}

// recomputes reports whether an operation's output is recomputed.
func (p Plan) recomputes(i int, op Op) bool { return p[i].Has(op) && !(op == Down && i == len(p)-1) }

// recomputesAfter reports whether the next operation is recomputed from this one's output.
func (p Plan) recomputesAfter(i int, op Op) bool {
	if op != Down {
		return p.recomputes(i, op+1)
	}
	return i+1 < len(p) && p[i+1].Has(Norm1)
}

// recomputesBefore reports whether GoMLX would recompute this operation's output: the mark spreads from what is
// recomputed to all that depends on it, also past the scores to the values and along the residual connection.
func (p Plan) recomputesBefore(i int, op Op) bool {
	switch op {
	case Norm1:
		return i > 0 && p[i-1].Has(Down)
	case Mix:
		return p[i]&SetOf(QKV, Scores) != 0
	case Mid:
		return p[i]&SetOf(Norm1, Mix) != 0 || i > 0 && p[i-1].Has(Down)
	case Down:
		return p[i]&SetOf(Mid, Norm2, Act) != 0
	}
	return p[i].Has(op - 1)
}

// FusedAttention returns the plan for fused attention, which never stores the scores: they are recomputed if [Mix] is,
// and not otherwise.
func (p Plan) FusedAttention() Plan {
	fused := slices.Clone(p)
	for i, set := range fused {
		if fused[i] = set &^ SetOf(Scores); set.Has(Mix) {
			fused[i] |= SetOf(Scores)
		}
	}
	return fused
}

// Policy returns the plan as text, block by block, for [Policy.Plan].
func (p Plan) Policy() Policy {
	var parts []string
	for i := 0; i < len(p); {
		n := 1
		for i+n < len(p) && p[i+n] == p[i] {
			n++
		}
		part := p[i].String()
		if n > 1 {
			part += "*" + strconv.Itoa(n)
		}
		parts, i = append(parts, part), i+n
	}
	return Policy("plan:" + strings.Join(parts, ";"))
}

// parsePlan parses what Policy writes, for a number of blocks, or 0 for any.
func parsePlan(text string, blocks int) (Plan, error) {
	var plan Plan
	for part := range strings.SplitSeq(text, ";") {
		names, times, repeated := strings.Cut(part, "*")
		n := 1
		if repeated {
			var err error
			if n, err = strconv.Atoi(times); err != nil || n < 1 {
				return nil, fmt.Errorf("recompute: %q in a plan: write a number of blocks after the *", part)
			}
		}
		set, err := parseSet(names)
		if err != nil {
			return nil, err
		}
		if n > maxBlocks-len(plan) {
			return nil, fmt.Errorf("recompute: a plan for more than %d blocks: give fewer", maxBlocks)
		}
		plan = append(plan, uniform(set, n)...)
	}
	if blocks > 0 && len(plan) != blocks {
		return nil, fmt.Errorf("recompute: a plan for %d blocks, but the model has %d: give one for each", len(plan),
			blocks)
	}
	return plan, nil
}
