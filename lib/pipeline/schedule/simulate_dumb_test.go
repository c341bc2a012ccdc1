package schedule

import "math/rand/v2"

// randomCosts are whole numbers for each stage, some of them 0, with quarters as the shares that are kept, so that all
// sums are exact.
func randomCosts(random *rand.Rand, stages int) Costs {
	list := func(most int, unit float64) (values []float64) {
		for range stages {
			values = append(values, unit*float64(random.IntN(most+1)))
		}
		return values
	}
	c := Costs{Forward: list(5, 1), InputGrad: list(5, 1), WeightGrad: list(5, 1), Update: list(3, 1), Activation: list(6, 1), Kept: list(4, 0.25)}
	if random.IntN(2) == 0 {
		c.Backward = list(9, 1)
	}
	if salt := random.IntN(4); salt > 0 {
		c.Link = func(from, to int) float64 { return float64((salt*from + 3*to) % 5) }
	}
	return c
}

// randomSchedule plays a random order of actions on a random placement. Stages of synchronous ones may be on several ranks.
func randomSchedule(random *rand.Rand) Schedule {
	s := Schedule{Name: "random", Stages: 1 + random.IntN(5), Microbatches: 1 + random.IntN(6), Weights: Flush, Ranks: make([][]Action, 1+random.IntN(4))}
	s.Every = s.Microbatches
	several := random.IntN(2) == 0
	if !several && random.IntN(2) == 0 {
		s.Weights, s.Every = Stash, 1
	}
	on, split := make([][]int, s.Stages), make([][]bool, s.Stages) // by stage and micro-batch
	for k := range on {
		home := random.IntN(len(s.Ranks))
		for range s.Microbatches {
			if several {
				home = random.IntN(len(s.Ranks))
			}
			on[k], split[k] = append(on[k], home), append(split[k], random.IntN(2) == 0)
		}
	}
	done := map[Action]bool{}
	for {
		var able []Action
		for k := range s.Stages {
			order := true // of gradients, on the rank that is to add them up
			for m := range s.Microbatches {
				has := func(p Pass) bool { return done[Action{p, k, m}] }
				back := k == s.Stages-1 || done[Action{Backward, k + 1, m}] || done[Action{InputGrad, k + 1, m}]
				switch {
				case !has(Forward):
					if k == 0 || done[Action{Forward, k - 1, m}] {
						able = append(able, Action{Forward, k, m})
					}
				case split[k][m] && !has(InputGrad):
					if back {
						able = append(able, Action{InputGrad, k, m})
					}
				case split[k][m] && !has(WeightGrad):
					if order {
						able = append(able, Action{WeightGrad, k, m})
					}
				case !split[k][m] && !has(Backward):
					if order && back {
						able = append(able, Action{Backward, k, m})
					}
				}
				order = order && (has(Backward) || has(WeightGrad))
			}
		}
		if len(able) == 0 {
			break
		}
		a := able[random.IntN(len(able))]
		done[a] = true
		r := on[a.Stage][a.Microbatch]
		s.do(r, a.Pass, a.Stage, a.Microbatch)
		if s.Weights == Stash && (a.Pass == Backward || a.Pass == WeightGrad) {
			s.do(r, Update, a.Stage, a.Microbatch)
		}
	}
	if s.Weights == Flush {
		s.flush()
	}
	return s
}

// dumbEnds gives the end of each action by going over all of them until nothing changes, looking for inputs in the lists.
func dumbEnds(s Schedule, c Costs) [][]float64 {
	ends := make([][]float64, len(s.Ranks))
	for r, list := range s.Ranks {
		ends[r] = make([]float64, len(list))
	}
	for changed := true; changed; {
		changed = false
		for r, list := range s.Ranks {
			for i, a := range list {
				start := 0.0
				if i > 0 {
					start = ends[r][i-1]
				}
				for q, others := range s.Ranks {
					for j, b := range others {
						gives := b.Microbatch == a.Microbatch && (a.Pass == Forward && b.Pass == Forward && b.Stage == a.Stage-1 ||
							(a.Pass == Backward || a.Pass == InputGrad) && (b.Pass == Backward || b.Pass == InputGrad) && b.Stage == a.Stage+1)
						adds := a.Pass == Update && b.Stage == a.Stage && (b.Pass == Backward || b.Pass == WeightGrad) &&
							b.Microbatch <= a.Microbatch && b.Microbatch > a.Microbatch-s.Every
						if gives || adds {
							at := ends[q][j]
							if q != r && c.Link != nil {
								at += c.Link(q, r)
							}
							start = max(start, at)
						}
					}
				}
				if end := start + c.Took(a); end != ends[r][i] {
					ends[r][i], changed = end, true
				}
			}
		}
	}
	return ends
}

// dumbMemory is the most that a rank holds, looked for at the start of each forward pass.
func dumbMemory(s Schedule, c Costs, r int) (count int, memory float64) {
	for i := range s.Ranks[r] {
		held := map[[2]int]float64{}
		for j, a := range s.Ranks[r][:i+1] {
			key, size := [2]int{a.Stage, a.Microbatch}, of(c.Activation, a.Stage, 1)
			switch {
			case a.Pass == Forward:
				held[key] = size
			case j == i: // has not ended
			case a.Pass == InputGrad:
				held[key] = size * of(c.Kept, a.Stage, 1)
			case a.Pass == Backward || a.Pass == WeightGrad:
				delete(held, key)
			}
		}
		sum := 0.0
		for _, size := range held {
			sum += size
		}
		count, memory = max(count, len(held)), max(memory, sum)
	}
	return count, memory
}
