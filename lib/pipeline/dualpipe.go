package pipeline

import (
	"fmt"

	"github.com/shardbook/shardbook/lib/step"
)

// DualPipe feeds the pipeline from both ends (DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", §3.2.1, figure 5): the
// first half of the micro-batches enters at rank 0, the other half at the last rank. So each stage is on two ranks:
// rank r has stages r and ranks-1-r, and what the ranks at equal distance from the ends do is alike. Ranks must be
// even, microbatches even and at least 2·ranks.
//
// The paper runs a forward and a backward pass of opposite directions at the same time, which hides communication. Here
// a rank does one pass at a time; such a pair is the forward pass, then the backward pass.
//
// With h the rank's distance from its end, "near" the stage h and "far" the stage ranks-1-h, a rank's list is the
// following. Pairs are written F+B, and a weight gradient on its own takes the oldest micro-batch that waits for it.
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
		d := dual{builder: b, rank: r, near: end, next: map[string]int{}}
		if r < ranks/2 {
			d.next["far F"], d.next["far B"] = microbatches/2, microbatches/2
		} else {
			d.next["near F"], d.next["near B"] = microbatches/2, microbatches/2
		}
		outer, inner := ranks/2-1-end, end+1
		d.do(outer, "near F", "near F")
		d.do(inner, "near F", "far F")
		d.do(outer, "far I", "W", "far F")
		d.do(microbatches/2-ranks+inner, "near F", "far B", "far F", "near B")
		d.do(outer, "far B", "far F", "near B")
		d.do(inner/2, "far B", "near B")
		if inner%2 != 0 { // the middle
			d.do(1, "far B", "near I")
		}
		d.do(inner/2, "far I", "near I")
		d.do(outer, "W", "near I")
		d.do(inner, "W")
	}
	return b.flush(), nil
}

// dual writes a rank's list of DualPipe; of each stage, forward and backward passes take the next micro-batch.
type dual struct {
	builder
	rank, near int
	next       map[string]int
	late       []step.Op // weight gradients that are still to do
}

func (d *dual) do(times int, passes ...string) {
	for range times {
		for _, pass := range passes {
			kind := step.Kind(pass[len(pass)-1])
			if kind == step.WeightGrad {
				d.do1(d.late[0])
				d.late = d.late[1:]
				continue
			}
			stage := d.near
			if pass[0] == 'f' {
				stage = len(d.Ranks) - 1 - d.near
			}
			count := pass
			if kind == step.InputGrad { // which shares a count with B
				count = pass[:len(pass)-1] + "B"
			}
			op := step.Op{Kind: kind, Block: stage, Micro: d.next[count]}
			d.next[count]++
			d.do1(op)
			if kind == step.InputGrad {
				op.Kind = step.WeightGrad
				d.late = append(d.late, op)
			}
		}
	}
}

func (d *dual) do1(op step.Op) { d.Ranks[d.rank] = append(d.Ranks[d.rank], op) }
