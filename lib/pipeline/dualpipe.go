package pipeline

import (
	"fmt"
	"unicode"

	"github.com/shardbook/shardbook/lib/step"
)

// DualPipe feeds the pipeline from both ends (DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", §3.2.1, figure 5): the
// first half of the micro-batches enters at rank 0, the other half at the last rank. Each stage is on two ranks: rank r
// has stages r and ranks-1-r. Ranks at equal distance from the ends have the same list with the stages exchanged. Ranks
// must be even, and microbatches even and at least 2·ranks.
//
// In the middle of the step a rank alternates between a forward pass of one direction and a backward pass of the other,
// a [step.Pair]. If blocks exchange data with other ranks, such as tokens for experts, the exchanges of one pass are
// under way while the other computes. The paper also runs the backward pass's weight gradient apart within a pair.
//
// With h the rank's distance from its end, "near" the stage h and "far" the stage ranks-1-h, a rank's list is as
// follows. Pairs are written F+B. A weight gradient by itself is of the oldest micro-batch that waits for it.
//
//  1. ranks/2-1-h times: two near F
//  2. h+1 times: near F, far F
//  3. ranks/2-1-h times: far I, W, far F
//  4. microbatches/2-ranks+h+1 times: near F + far B, far F + near B
//  5. ranks/2-1-h times: far B, far F + near B
//  6. h+1 times: far B, near B; from the middle on I in the place of B
//  7. ranks/2-1-h times: W, near I
//  8. h+1 times: W
func DualPipe(ranks, microbatches int) (*step.Plan, error) {
	b, err := blank(KindDualPipe, ranks, microbatches, 1, 3)
	if err != nil {
		return nil, err
	}
	if ranks%2 != 0 {
		return nil, fmt.Errorf("schedule %s: %d ranks are odd: use %d", KindDualPipe, ranks, ranks+1)
	}
	if microbatches%2 != 0 || microbatches < 2*ranks {
		return nil, fmt.Errorf("schedule %s: %d micro-batches: use an even number of at least %d, "+
			"two for each of the %d ranks", KindDualPipe, microbatches, 2*ranks, ranks)
	}
	for r := range ranks {
		end := min(r, ranks-1-r)
		d := dual{builder: b, rank: r, stages: [2]int{end, ranks - 1 - end}, next: map[rune]int{}}
		if r < ranks/2 { // the second half of the micro-batches enters at the far end
			d.next['f'], d.next['b'] = microbatches/2, microbatches/2
		} else {
			d.next['F'], d.next['B'] = microbatches/2, microbatches/2
		}
		outer, inner := ranks/2-1-end, end+1
		d.do(outer, "FF")
		d.do(inner, "Ff")
		d.do(outer, "iWf")
		d.do(microbatches/2-ranks+inner, "F&bf&B")
		d.do(outer, "bf&B")
		d.do(inner/2, "bB")
		if inner%2 != 0 { // the middle
			d.do(1, "bI")
		}
		d.do(inner/2, "iI")
		d.do(outer, "WI")
		d.do(inner, "W")
	}
	return b.flush(), nil
}

// dual builds a rank's list of DualPipe.
type dual struct {
	builder
	rank   int
	stages [2]int       // near and far
	next   map[rune]int // micro-batch of the next forward and backward passes
	late   []step.Op    // weight gradients still to compute
}

// do appends passes, repeated times: capital letters are passes of the near stage, small ones of the far stage. A pass
// after & is paired.
func (d *dual) do(times int, passes string) {
	for range times {
		paired := false
		for _, pass := range passes {
			if pass == '&' {
				paired = true
				continue
			}
			op := step.Op{Kind: step.Kind(unicode.ToUpper(pass)), Block: d.stages[0], Paired: paired}
			paired = false
			if unicode.IsLower(pass) {
				op.Block = d.stages[1]
			}
			if op.Kind == step.WeightGrad {
				op, d.late = d.late[0], d.late[1:]
			} else {
				if op.Kind == step.InputGrad { // it shares a count with B
					pass -= 'I' - 'B'
				}
				op.Micro = d.next[pass]
				d.next[pass]++
			}
			if d.Ranks[d.rank] = append(d.Ranks[d.rank], op); op.Kind == step.InputGrad {
				op.Kind = step.WeightGrad
				d.late = append(d.late, op)
			}
		}
	}
}
