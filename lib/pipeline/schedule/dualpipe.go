package schedule

import "fmt"

// DualPipe feeds the pipeline from both ends (DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", §3.2.1, figure 5): the
// first half of the micro-batches enters at rank 0, the other half at the last rank. So each stage is on two ranks: rank r
// has stages r and ranks-1-r, and what the ranks at equal distance from the ends do is alike. Ranks must be even,
// microbatches even and at least 2·ranks.
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
func DualPipe(ranks, microbatches int) (Schedule, error) {
	s, err := blank(KindDualPipe, ranks, microbatches, 1, 3)
	if err != nil {
		return s, err
	}
	if ranks%2 != 0 {
		return Schedule{}, fmt.Errorf("schedule %s: %d ranks are odd: use %d", KindDualPipe, ranks, ranks+1)
	}
	if microbatches%2 != 0 || microbatches < 2*ranks {
		return Schedule{}, fmt.Errorf(
			"schedule %s: %d micro-batches: use an even number of at least %d, two for each of the %d ranks", KindDualPipe, microbatches, 2*ranks, ranks)
	}
	for r := range ranks {
		end := min(r, ranks-1-r)
		d := dual{s: &s, rank: r, stage: [2]int{end, ranks - 1 - end}, next: [2]map[Pass]int{{}, {}}}
		if r < ranks/2 {
			d.first[farEnd] = microbatches / 2
		} else {
			d.first[nearEnd] = microbatches / 2
		}
		outer, inner, middle := ranks/2-1-end, end+1, microbatches/2-ranks+end+1
		for range outer {
			d.do(nearEnd, Forward, Forward)
		}
		for range inner {
			d.do(nearEnd, Forward)
			d.do(farEnd, Forward)
		}
		for range outer {
			d.do(farEnd, InputGrad)
			d.weightGrad()
			d.do(farEnd, Forward)
		}
		for range middle {
			d.do(nearEnd, Forward)
			d.do(farEnd, Backward)
			d.do(farEnd, Forward)
			d.do(nearEnd, Backward)
		}
		for range outer {
			d.do(farEnd, Backward, Forward)
			d.do(nearEnd, Backward)
		}
		for i := range 2 * inner {
			back := Backward
			if i >= inner { // the later half
				back = InputGrad
			}
			d.do([]int{farEnd, nearEnd}[i%2], back)
		}
		for range outer {
			d.weightGrad()
			d.do(nearEnd, InputGrad)
		}
		for range inner {
			d.weightGrad()
		}
	}
	s.flush()
	return s, nil
}

// The two stages of a rank in DualPipe, by where their micro-batches come from.
const (
	nearEnd = iota
	farEnd
)

// dual writes a rank's list; of each stage, forward and backward passes take the next micro-batch.
type dual struct {
	s     *Schedule
	rank  int
	stage [2]int
	first [2]int // micro-batch of each
	next  [2]map[Pass]int
	late  []Action // weight gradients that are still to do
}

func (d *dual) do(which int, passes ...Pass) {
	for _, pass := range passes {
		kind := pass
		if pass == InputGrad {
			kind = Backward // the two share a count
		}
		m := d.first[which] + d.next[which][kind]
		d.next[which][kind]++
		d.s.do(d.rank, pass, d.stage[which], m)
		if pass == InputGrad {
			d.late = append(d.late, Action{WeightGrad, d.stage[which], m})
		}
	}
}

func (d *dual) weightGrad() {
	d.s.Ranks[d.rank] = append(d.s.Ranks[d.rank], d.late[0])
	d.late = d.late[1:]
}
