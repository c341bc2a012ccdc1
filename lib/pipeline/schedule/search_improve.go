package schedule

import "slices"

// Effort: how many of the best candidates are improved; and the actions that list schedulers place, about, and those that
// are played anew when neighbours have swapped places.
const (
	improved   = 4
	mostPlaced = 2_000_000
	mostPlayed = 4_000_000
)

// best improves the best candidates and returns the best of all. A named one that nothing beats keeps its name.
func (f *finder) best() (Schedule, error) {
	best := f.found[0]
	for _, c := range f.found {
		if c.step < best.step && !sameTime(c.step, best.step) {
			best = c
		}
	}
	slices.SortStableFunc(f.found, func(a, b candidate) int { return a.compare(b.score) })
	for _, c := range f.found[:min(improved, len(f.found))] {
		if sameTime(best.step, f.bound(best.Schedule)) {
			break
		}
		c, err := f.improve(c, mostPlayed/improved)
		if err != nil {
			return Schedule{}, err
		}
		if c.step < best.step && !sameTime(c.step, best.step) {
			best = c
		}
	}
	return best.Schedule, nil
}

// improve swaps neighbours in the ranks' orders as long as that makes the score better, and actions are played no more
// often than plays.
func (f *finder) improve(c candidate, plays int) (candidate, error) {
	clk, err := f.clock(c.Schedule)
	if err != nil {
		return c, err
	}
	orders, ranks := clk.orders, make([][]Action, len(c.Ranks))
	for r := range ranks {
		ranks[r] = slices.Clone(c.Ranks[r])
	}
	c.Ranks = ranks
	bound := f.bound(c.Schedule)
	for better := true; better; {
		better = false
		for r, order := range orders {
			actions, stages := ranks[r], c.On(r)
			for k := 0; k+1 < len(order); k++ {
				a, b := actions[k], actions[k+1]
				if b.Pass == Update || a.Stage == b.Stage && (a.Pass == b.Pass || a.Microbatch == b.Microbatch) {
					continue // gradients are summed in order, and updates come last
				}
				if plays -= len(clk.actions); plays < 0 || sameTime(c.step, bound) {
					return c, nil
				}
				swap := func() {
					order[k], order[k+1] = order[k+1], order[k]
					actions[k], actions[k+1] = actions[k+1], actions[k]
				}
				swap()
				if (b.Pass != Forward || f.fits(actions, stages)) && clk.play(orders) {
					if s := clk.rate(orders); s.compare(c.score) < 0 {
						c.score, c.Name, better = s, string(KindSearch), true
						continue
					}
				}
				swap()
			}
		}
	}
	return c, nil
}
