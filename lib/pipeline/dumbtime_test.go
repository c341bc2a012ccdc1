package pipeline_test

import (
	"slices"

	"github.com/shardbook/shardbook/lib/step"
)

// A second implementation of time, as plain as it can be, in which a forward pass and a backward pass that follows it
// are one action, as in DualPipe's paper.

// span is when an action of a rank's list ran.
type span struct{ start, end int }

// units is the time of each pass where all take one: a whole backward pass takes two, an update none.
var units = map[step.Kind]int{step.Forward: 1, step.Backward: 2, step.InputGrad: 1, step.WeightGrad: 1, step.Update: 0}

// dumbTimes starts each action when the one before on the rank has ended and what it needs is there; messages take no
// time. It goes over all ranks again and again until nothing changes. What can never start is not in the result. The
// outputs of a pair come at its end.
func dumbTimes(s *step.Plan) [][]span {
	never := -1
	var ready [2][]int // of forward and backward passes, by stage+1 and micro-batch
	for i := range ready {
		ready[i] = slices.Repeat([]int{never}, (len(s.Blocks)+2)*s.Micro)
	}
	for m := range s.Micro {
		ready[0][m], ready[1][(len(s.Blocks)+1)*s.Micro+m] = 0, 0
	}
	output := func(a step.Op, stage int) *int {
		way := 0
		if a.Kind != step.Forward {
			way = 1
		}
		return &ready[way][(stage+1)*s.Micro+a.Micro]
	}
	input := func(a step.Op) int {
		switch a.Kind {
		case step.Forward:
			return *output(a, a.Block-1)
		case step.Backward, step.InputGrad:
			return *output(a, a.Block+1)
		}
		return 0
	}
	times := make([][]span, len(s.Ranks))
	for changed := true; changed; {
		changed = false
		for r, list := range s.Ranks {
			for n := len(times[r]); n < len(list); n = len(times[r]) {
				one := list[n : n+1]
				if n+1 < len(list) && list[n].Kind == step.Forward && list[n+1].Kind == step.Backward {
					one = list[n : n+2]
				}
				t, all := span{}, true
				if n > 0 {
					t.start = times[r][n-1].end
				}
				for _, a := range one {
					t.start, all = max(t.start, input(a)), all && input(a) != never
				}
				if !all {
					break
				}
				t.end = t.start
				for _, a := range one {
					t.end += units[a.Kind]
				}
				for _, a := range one {
					if a.Kind == step.Forward || a.Kind == step.Backward || a.Kind == step.InputGrad {
						*output(a, a.Block) = t.end
					}
					times[r] = append(times[r], t)
				}
				changed = true
			}
		}
	}
	return times
}

// dumbPeriod is the largest span of a rank and the largest time that a rank works, at unit costs; zeros if not all can
// run.
func dumbPeriod(s *step.Plan) (period, busy int) {
	for r, list := range dumbTimes(s) {
		if len(list) != len(s.Ranks[r]) {
			return 0, 0
		}
		work := 0
		for _, a := range s.Ranks[r] {
			work += units[a.Kind]
		}
		period, busy = max(period, list[len(list)-1].end-list[0].start), max(busy, work)
	}
	return period, busy
}
