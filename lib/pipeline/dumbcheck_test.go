package pipeline_test

import "github.com/shardbook/shardbook/lib/step"

// dumbValid is a second [step.Plan.Check] of schedules, which only says yes or no: it does one action after the other,
// in whatever order the ranks' lists allow, and keeps what there is in sets.
func dumbValid(s *step.Plan) bool {
	stages := len(s.Blocks)
	if stages < 1 || s.Micro < 1 || s.Every < 1 || s.Micro%s.Every != 0 || len(s.Ranks) == 0 ||
		(s.Weights == step.Flush && s.Every != s.Micro) {
		return false
	}
	type pass struct {
		pass     step.Kind
		stage, m int
	}
	type held struct{ rank, stage int }
	where := map[pass]int{}            // the rank of each pass done; whole backward passes count as their halves
	since := map[held]map[int]bool{}   // gradients since the last update
	forward := map[held]map[int]bool{} // micro-batches that the rank has gone forward with
	updates := map[held]int{}          // done
	firstVersion := make(map[int]int)  // of the micro-batch, at the first stage
	next := make([]int, len(s.Ranks))  // of each rank's list
	stageOf := func(a step.Op) int {
		if a.Kind == step.Update {
			return a.Unit
		}
		return a.Block
	}
	holds := func(r, stage int) (n int) { // actions of the stage in the rank's list
		for _, a := range s.Ranks[r] {
			if stageOf(a) == stage {
				n++
			}
		}
		return n
	}
	for r := range s.Ranks {
		for stage := range stages {
			since[held{r, stage}], forward[held{r, stage}] = map[int]bool{}, map[int]bool{}
		}
	}
	has := func(p step.Kind, stage, m int) bool { _, ok := where[pass{p, stage, m}]; return ok }
	// can does an action of a rank if that is possible now; never is true if it can not be, ever.
	can := func(r int, a step.Op) (did, never bool) {
		h := held{r, stageOf(a)}
		there := func(p step.Kind) bool { rank, ok := where[pass{p, stageOf(a), a.Micro}]; return ok && rank == r }
		if a.Kind == step.Update {
			if a.Micro != (updates[h]+1)*s.Every-1 {
				return false, true
			}
			for other := range s.Ranks { // the gradients of all go into it
				for m := range s.Micro {
					_, done := where[pass{step.WeightGrad, stageOf(a), m}]
					on, began := where[pass{step.Forward, stageOf(a), m}]
					if m/s.Every == a.Micro/s.Every && (!done || !began) {
						return false, other == on && on == r
					}
				}
			}
			if len(since[h]) == 0 {
				return false, true
			}
			updates[h]++
			clear(since[h])
			next[r]++
			return true, false
		}
		grad := func() bool { // adds to the gradients
			for m := range since[h] {
				if m > a.Micro {
					return false
				}
			}
			since[h][a.Micro] = true
			return a.Micro/s.Every == updates[h]
		}
		switch a.Kind {
		case step.Forward:
			if stageOf(a) > 0 && !has(step.Forward, stageOf(a)-1, a.Micro) {
				return false, false
			}
			if stageOf(a) == 0 {
				firstVersion[a.Micro] = updates[h]
			}
			if has(step.Forward, stageOf(a), a.Micro) || (s.Weights == step.Vertical && firstVersion[a.Micro] > updates[h]) ||
				(s.Weights == step.Double && a.Micro/s.Every-1 > updates[h]) {
				return false, true
			}
			where[pass{step.Forward, stageOf(a), a.Micro}] = r
			forward[h][a.Micro] = true
		case step.Backward, step.InputGrad:
			if stageOf(a) < stages-1 && !has(step.InputGrad, stageOf(a)+1, a.Micro) {
				return false, false
			}
			if !there(step.Forward) || has(step.InputGrad, stageOf(a), a.Micro) {
				return false, true
			}
			where[pass{step.InputGrad, stageOf(a), a.Micro}] = r
			if a.Kind == step.Backward {
				where[pass{step.WeightGrad, stageOf(a), a.Micro}] = r
				if !grad() {
					return false, true
				}
			}
		case step.WeightGrad:
			if !there(step.InputGrad) || has(step.WeightGrad, stageOf(a), a.Micro) || !grad() {
				return false, true
			}
			where[pass{step.WeightGrad, stageOf(a), a.Micro}] = r
		}
		next[r]++
		return true, false
	}
	for moved := true; moved; {
		moved = false
		for r, list := range s.Ranks {
			for next[r] < len(list) {
				a := list[next[r]]
				if stageOf(a) < 0 || stageOf(a) >= stages || a.Micro < 0 || a.Micro >= s.Micro {
					return false
				}
				did, never := can(r, a)
				if never {
					return false
				}
				if !did {
					break
				}
				moved = true
			}
		}
	}
	for r, list := range s.Ranks {
		if next[r] < len(list) {
			return false
		}
		for stage := range stages {
			if holds(r, stage) > 0 && updates[held{r, stage}] != s.Micro/s.Every {
				return false
			}
		}
	}
	return len(where) == 3*stages*s.Micro
}
