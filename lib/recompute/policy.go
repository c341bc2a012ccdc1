package recompute

import (
	"fmt"
	"math"
	"strconv"
	"strings"
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
	if strings.HasPrefix(string(p), "plan:") {
		_, err := parsePlan(strings.TrimPrefix(string(p), "plan:"), 0)
		return err
	}
	_, err := p.Plan(1)
	return err
}

func uniform(s Set, blocks int) Plan {
	plan := make(Plan, blocks)
	for i := range plan {
		plan[i] = s
	}
	return plan
}

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
