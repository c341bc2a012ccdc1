package schedule

import "maps"

// dumbValid is a second [Schedule.Check], which only says yes or no: it does one action after the other, in whatever order
// the ranks' lists allow, and keeps what there is in sets.
func dumbValid(s Schedule) bool {
	if s.Stages < 1 || s.Microbatches < 1 || s.Every < 1 || s.Microbatches%s.Every != 0 || len(s.Ranks) == 0 ||
		(s.Weights == Flush && s.Every != s.Microbatches) {
		return false
	}
	type pass struct {
		pass     Pass
		stage, m int
	}
	type held struct{ rank, stage int }
	where := map[pass]int{}               // the rank of each pass done; whole backward passes count as their halves
	since := map[held]map[int]bool{}      // gradients since the last update
	forward := map[held]map[int]bool{}    // micro-batches that the rank has gone forward with
	updates := map[held]int{}             // done
	firstVersion := make(map[int]int)     // of the micro-batch, at the first stage
	next := make([]int, len(s.Ranks))     // of each rank's list
	holds := func(r, stage int) (n int) { // actions of the stage in the rank's list
		for _, a := range s.Ranks[r] {
			if a.Stage == stage {
				n++
			}
		}
		return n
	}
	for r := range s.Ranks {
		for stage := range s.Stages {
			since[held{r, stage}], forward[held{r, stage}] = map[int]bool{}, map[int]bool{}
		}
	}
	has := func(p Pass, stage, m int) bool { _, ok := where[pass{p, stage, m}]; return ok }
	// can does an action of a rank if that is possible now; never is true if it can not be, ever.
	can := func(r int, a Action) (did, never bool) {
		h := held{r, a.Stage}
		there := func(p Pass) bool { rank, ok := where[pass{p, a.Stage, a.Microbatch}]; return ok && rank == r }
		if a.Pass == Update {
			if a.Microbatch != (updates[h]+1)*s.Every-1 {
				return false, true
			}
			for other := range s.Ranks {
				if holds(other, a.Stage) > 0 && (next[other] >= len(s.Ranks[other]) || s.Ranks[other][next[other]] != a) {
					return false, false
				}
			}
			for other := range s.Ranks { // all do it at once
				if h := (held{other, a.Stage}); holds(other, a.Stage) > 0 {
					due := map[int]bool{}
					for m := range forward[h] {
						if m/s.Every == a.Microbatch/s.Every {
							due[m] = true
						}
					}
					if !maps.Equal(since[h], due) {
						return false, true
					}
					updates[h]++
					clear(since[h])
					next[other]++
				}
			}
			return true, false
		}
		grad := func() bool { // adds to the gradients
			for m := range since[h] {
				if m > a.Microbatch {
					return false
				}
			}
			since[h][a.Microbatch] = true
			return a.Microbatch/s.Every == updates[h]
		}
		switch a.Pass {
		case Forward:
			if a.Stage > 0 && !has(Forward, a.Stage-1, a.Microbatch) {
				return false, false
			}
			if a.Stage == 0 {
				firstVersion[a.Microbatch] = updates[h]
			}
			if has(Forward, a.Stage, a.Microbatch) || (s.Weights == Vertical && firstVersion[a.Microbatch] > updates[h]) ||
				(s.Weights == Double && a.Microbatch/s.Every-1 > updates[h]) {
				return false, true
			}
			where[pass{Forward, a.Stage, a.Microbatch}] = r
			forward[h][a.Microbatch] = true
		case Backward, InputGrad:
			if a.Stage < s.Stages-1 && !has(InputGrad, a.Stage+1, a.Microbatch) {
				return false, false
			}
			if !there(Forward) || has(InputGrad, a.Stage, a.Microbatch) {
				return false, true
			}
			where[pass{InputGrad, a.Stage, a.Microbatch}] = r
			if a.Pass == Backward {
				where[pass{WeightGrad, a.Stage, a.Microbatch}] = r
				if !grad() {
					return false, true
				}
			}
		case WeightGrad:
			if !there(InputGrad) || has(WeightGrad, a.Stage, a.Microbatch) || !grad() {
				return false, true
			}
			where[pass{WeightGrad, a.Stage, a.Microbatch}] = r
		}
		next[r]++
		return true, false
	}
	for moved := true; moved; {
		moved = false
		for r, list := range s.Ranks {
			for next[r] < len(list) {
				a := list[next[r]]
				if a.Stage < 0 || a.Stage >= s.Stages || a.Microbatch < 0 || a.Microbatch >= s.Microbatches {
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
		for stage := range s.Stages {
			if holds(r, stage) > 0 && updates[held{r, stage}] != s.Microbatches/s.Every {
				return false
			}
		}
	}
	return len(where) == 3*s.Stages*s.Microbatches
}
