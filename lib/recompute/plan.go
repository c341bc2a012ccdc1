package recompute

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gomlx/gomlx/core/graph"
)

// Plan says for each block which operations' outputs are recomputed in the backward pass; the others are kept. What is
// recomputed is recomputed from what was kept last before it, once. The last block's output is kept in any case, since
// what comes after the blocks needs it as soon as it is made.
//
// A model calls [Plan.Enter] where it enters the blocks and [Plan.After] on what each operation makes. The values come
// back the same, but tell GoMLX's reverse pass what to keep (Node.Checkpoint); what was not kept it makes again as soon
// as a gradient arrives that needs it, collectives between devices included.
type Plan []Set

// maxBlocks bounds what a text may ask for.
const maxBlocks = 1 << 16

// Enter returns the input of block i where the model, or the part of it that this program has, begins with that block.
// It builds a graph, and panics if the plan has no such block.
func (p Plan) Enter(i int, x *graph.Node) *graph.Node {
	if p[i].Has(Norm1) {
		return checkpoint(x)
	}
	return x
}

// After returns what an operation of block i has made. An operation that makes several values passes each of them. It
// builds a graph, and panics if the plan has no such block.
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

// Within returns what an operation of block i has made on the way to its output, where the gradient of the rest refers
// to that rest's own result: it would have to be made again although the output is kept, if what the operation is made
// of is. It builds a graph, and panics if the plan has no such block.
func (p Plan) Within(i int, op Op, x *graph.Node) *graph.Node {
	if !p.recomputes(i, op) && p.recomputesBefore(i, op) {
		return x.StopCheckpoint()
	}
	return x
}

// recomputes says whether an operation's output is recomputed.
func (p Plan) recomputes(i int, op Op) bool { return p[i].Has(op) && !(op == Down && i == len(p)-1) }

// recomputesAfter says whether the next operation is recomputed, from what this one has made.
func (p Plan) recomputesAfter(i int, op Op) bool {
	if op != Down {
		return p.recomputes(i, op+1)
	}
	return i+1 < len(p) && p[i+1].Has(Norm1)
}

// recomputesBefore says whether GoMLX would recompute what this operation makes: the mark spreads from what is
// recomputed to all that is made of it, past the scores to the values, and along the residual connection, too.
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

// FusedAttention is the plan for attention that is one operation and never holds its scores: those are recomputed where
// [Mix] is, and nowhere else.
func (p Plan) FusedAttention() Plan {
	fused := slices.Clone(p)
	for i, set := range fused {
		if fused[i] = set &^ SetOf(Scores); set.Has(Mix) {
			fused[i] |= SetOf(Scores)
		}
	}
	return fused
}

// Any says whether anything is recomputed.
func (p Plan) Any() bool {
	for _, s := range p {
		if s != 0 {
			return true
		}
	}
	return false
}

// Policy returns the plan as a text, block by block; [Policy.Plan] reads it.
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

// parsePlan reads what Policy has written, for so many blocks, or 0 for any number.
func parsePlan(text string, blocks int) (Plan, error) {
	var plan Plan
	for part := range strings.SplitSeq(text, ";") {
		names, times, repeated := strings.Cut(part, "*")
		n := 1
		if repeated {
			var err error
			if n, err = strconv.Atoi(times); err != nil || n < 1 {
				return nil, fmt.Errorf("recompute: %q in a plan: give a number of blocks after the *", part)
			}
		}
		set, err := parseSet(names)
		if err != nil {
			return nil, err
		}
		if n > maxBlocks-len(plan) {
			return nil, fmt.Errorf("recompute: a plan for more than %d blocks", maxBlocks)
		}
		plan = append(plan, uniform(set, n)...)
	}
	if blocks > 0 && len(plan) != blocks {
		return nil, fmt.Errorf("recompute: a plan for %d blocks, of a model with %d", len(plan), blocks)
	}
	return plan, nil
}
