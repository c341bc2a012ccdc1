package recompute

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/gomlx/gomlx/core/graph"
)

// Policy names what the blocks of a Transformer recompute. It is text, for flags and files:
//
//	""  or "none"     nothing: everything that the backward pass needs is saved
//	"block"           all but the output of every block
//	"sublayers"       all but the outputs of every block's two sub-layers, attention and MLP, each with its residual
//	                  connection (Vaswani et al. 2017, §3.1); "halves" is an older name for it
//	"every:K"         all but the output of every K-th block
//	"sqrt"            every:K with the K next to the root of the number of blocks (Chen et al. 2016, §4.1)
//	"selective"       the attention scores (Korthikanti et al. 2022, §5)
//	"ops:A,B"         the outputs of these operations of every block: names of [Op]
//	"plan:A,B;-*3"    the operations of each block; "*3" repeats: see [Plan.Policy]
//
// If K of L blocks are between saved outputs and a block needs a times the memory of its output, L/K + a·K times that
// is needed. The root of L is the best K for a = 1. A Transformer block needs about 25 times its output; then "block"
// needs less than "sqrt" for fewer than a² blocks.
type Policy string

// The policies without parameters.
const (
	None      Policy = ""
	Block     Policy = "block"
	SubLayers Policy = "sublayers"
	Sqrt      Policy = "sqrt"
	Selective Policy = "selective"
)

// Every saves the output of every k-th block and nothing else.
func Every(k int) Policy { return Policy(fmt.Sprintf("every:%d", k)) }

// Recomputing recomputes the outputs of some operations of every block.
func Recomputing(ops ...Op) Policy { return Policy("ops:" + SetOf(ops...).String()) }

// Plan returns what each of a number of blocks recomputes. An unknown policy is an error, and so is a plan for another
// number of blocks.
func (p Policy) Plan(blocks int) (Plan, error) {
	if blocks < 1 || blocks > maxBlocks {
		return nil, fmt.Errorf("recompute: a plan for %d blocks: choose 1 to %d", blocks, maxBlocks)
	}
	kind, argument, colon := strings.Cut(string(p), ":")
	if plan := named(kind, blocks); plan != nil {
		if colon {
			return nil, fmt.Errorf("recompute: policy %q takes no argument: write %q", p, kind)
		}
		return plan, nil
	}
	switch kind {
	case "every":
		k, err := strconv.Atoi(argument)
		if err != nil || k < 1 {
			return nil, fmt.Errorf("recompute: policy %q: give a number of blocks, at least 1, as in every:2", p)
		}
		return every(k, blocks), nil
	case "ops":
		set, err := parseSet(argument)
		if err != nil {
			return nil, err
		}
		return uniform(set, blocks), nil
	case "plan":
		return parsePlan(argument, blocks)
	}
	return nil, fmt.Errorf("recompute: no policy %q: choose none, block, sublayers, every:K, sqrt, selective or "+
		"ops:A,B", p)
}

// named returns the plan of a policy without parameters, nil for any other.
func named(kind string, blocks int) Plan {
	switch Policy(kind) {
	case None, "none":
		return make(Plan, blocks)
	case Block:
		return every(1, blocks)
	case SubLayers, "halves":
		return uniform(allOps&^SetOf(Mid, Down), blocks)
	case Sqrt:
		return every(int(math.Round(math.Sqrt(float64(blocks)))), blocks)
	case Selective:
		return uniform(SetOf(Scores), blocks)
	}
	return nil
}

// Validate returns an error if there is no such policy.
func (p Policy) Validate() error {
	var err error
	if text, plan := strings.CutPrefix(string(p), "plan:"); plan {
		_, err = parsePlan(text, 0)
	} else {
		_, err = p.Plan(1)
	}
	return err
}

func uniform(s Set, blocks int) Plan { return slices.Repeat(Plan{s}, blocks) }

// every saves the output of every k-th block, and of the last.
func every(k, blocks int) Plan {
	plan := uniform(allOps, blocks)
	for i := range plan {
		if (i+1)%k == 0 || i == blocks-1 {
			plan[i] &^= SetOf(Down)
		}
	}
	return plan
}

func parseSet(names string) (Set, error) {
	if names == "-" {
		return 0, nil
	}
	var s Set
	for name := range strings.SplitSeq(names, ",") {
		op, err := ParseOp(name)
		if err != nil {
			return 0, err
		}
		s |= SetOf(op)
	}
	return s, nil
}

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
	for n := 0; len(p) > 0; p = p[n:] {
		for n = 1; n < len(p) && p[n] == p[0]; n++ {
		}
		if parts = append(parts, p[0].String()); n > 1 {
			parts[len(parts)-1] += "*" + strconv.Itoa(n)
		}
	}
	return Policy("plan:" + strings.Join(parts, ";"))
}

// parsePlan parses what Policy writes, for a number of blocks, or 0 for any.
func parsePlan(text string, blocks int) (Plan, error) {
	var plan Plan
	for part := range strings.SplitSeq(text, ";") {
		names, times, repeated := strings.Cut(part, "*")
		set, err := parseSet(names)
		if err != nil {
			return nil, err
		}
		n := 1
		if repeated {
			if n, err = strconv.Atoi(times); err != nil || n < 1 {
				return nil, fmt.Errorf("recompute: %q in a plan: write a number of blocks after the *", part)
			}
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

// Op is an operation of a Transformer block whose output is saved for the backward pass or recomputed in it.
type Op uint8

// The operations in the order in which a block computes them.
const (
	Norm1  Op = iota // the normalization before attention
	QKV              // queries, keys and values
	Scores           // the attention weights, softmax(q·kᵀ)
	Mix              // the weighted mean of the values
	Mid              // the sum of the block's input and the projected attention output
	Norm2            // the normalization before the MLP
	Up               // the MLP's first matmul, with the gate's
	Act              // its activation
	Down             // the sum of Mid and the MLP's output: the block's output
	ops
)

var opNames = [ops]string{"norm1", "qkv", "scores", "mix", "mid", "norm2", "up", "act", "down"}

// AllOps lists the operations of a block in order.
func AllOps() []Op {
	all := make([]Op, ops)
	for i := range all {
		all[i] = Op(i)
	}
	return all
}

// String returns the name, as in "norm1".
func (o Op) String() string {
	if o >= ops {
		return fmt.Sprintf("op %d", uint8(o))
	}
	return opNames[o]
}

// ParseOp returns the operation with a name, or an error that lists the names.
func ParseOp(name string) (Op, error) {
	if i := slices.Index(opNames[:], name); i >= 0 {
		return Op(i), nil
	}
	return 0, fmt.Errorf("recompute: no operation %q: choose from %s", name, strings.Join(opNames[:], ", "))
}

// Set is a set of operations of one block.
type Set uint16

// allOps is the set of all operations.
const allOps Set = 1<<ops - 1

// SetOf returns the set of some operations.
func SetOf(list ...Op) Set {
	var s Set
	for _, o := range list {
		s |= 1 << o
	}
	return s
}

// Has reports whether an operation is in the set.
func (s Set) Has(o Op) bool { return s>>o&1 == 1 }

// Len returns the number of operations in the set.
func (s Set) Len() int { return bits.OnesCount16(uint16(s)) }

// String lists the names, as in "norm1,act"; "-" for none.
func (s Set) String() string {
	var names []string
	for _, o := range AllOps() {
		if s.Has(o) {
			names = append(names, o.String())
		}
	}
	return cmp.Or(strings.Join(names, ","), "-")
}
