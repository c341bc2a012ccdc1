package schedule

import "fmt"

// Check tells whether the schedule can be run, and computes what its [Weights] promise. The errors say where:
//
//   - sizes that cannot be, and actions of stages, micro-batches or passes that there are not;
//   - a pass that is missing, there twice, or before one of the same rank that it needs; both a whole backward pass and its halves; a stage's
//     passes for one micro-batch on several ranks;
//   - gradients that are not added up in ascending order of micro-batches, in which all schedules must do it so that they
//     compute the same;
//   - an update that is missing, comes before a gradient that belongs in it, or behind one that does not: each rank has
//     one for each of its stages after every [Schedule].Every micro-batches;
//   - a version of the weights that is needed before it is made;
//   - ranks that wait for each other, with the actions at which they do. This plays the programs of [Schedule.Programs].
func (s Schedule) Check() error {
	_, err := s.checked()
	return err
}

// checked is Check, and returns what [Schedule.Versions] does.
func (s Schedule) checked() (versions [][]int, err error) {
	x, err := s.index()
	if err != nil {
		return nil, err
	}
	if err := s.checkInputs(x); err != nil {
		return nil, err
	}
	if err := s.checkUpdates(); err != nil {
		return nil, err
	}
	if versions, err = s.versions(x); err != nil {
		return nil, err
	}
	return versions, s.play(x)
}

// checkInputs looks for passes that come before what they need in the same list; [Schedule.play] finds the longer cycles.
func (s Schedule) checkInputs(x *index) error {
	for r, list := range s.Ranks {
		for i, a := range list {
			if from, ok := x.input(s, a); ok && int(from.rank) == r && int(from.at) > i {
				return s.errorAt(r, i, "it needs %v, which the rank does later, at position %d: move it behind that",
					list[from.at], from.at)
			}
		}
	}
	return nil
}

// checkUpdates looks at the order of gradients and updates. All gradients are known to be there once.
func (s Schedule) checkUpdates() error {
	type progress struct {
		gradient int // next micro-batch that a gradient may be of
		updated  int // micro-batches that the updates so far have
	}
	for r, list := range s.Ranks {
		stages := map[int]*progress{}
		for i, a := range list {
			p := stages[a.Stage]
			if p == nil {
				p = &progress{}
				stages[a.Stage] = p
			}
			due := p.updated + s.Every - 1 // for the next update
			switch a.Pass {
			case Update:
				if a.Microbatch != due {
					if due >= s.Microbatches {
						return s.errorAt(r, i, "stage %d has had its last update: remove this one", a.Stage)
					}
					return s.errorAt(r, i, "the next update of the stage is %v, every %d micro-batches",
						Action{Update, a.Stage, due}, s.Every)
				}
				p.updated += s.Every
			case Backward, WeightGrad:
				switch {
				case a.Microbatch < p.updated:
					return s.errorAt(r, i, "the update that its gradient belongs in, %v, came before: move that behind it",
						Action{Update, a.Stage, (a.Microbatch/s.Every+1)*s.Every - 1})
				case a.Microbatch > due:
					return s.errorAt(r, i, "its gradient does not belong in the update %v: that must come before",
						Action{Update, a.Stage, due})
				case a.Microbatch < p.gradient:
					return s.errorAt(r, i, "the stage's gradient for micro-batch %d came before: add them up in ascending order",
						p.gradient-1)
				}
				p.gradient = a.Microbatch + 1
			}
		}
		for _, stage := range s.On(r) {
			if p := stages[stage]; p.updated != s.Microbatches {
				return fmt.Errorf("schedule: rank %d has no update %v: each of its stages needs one every %d micro-batches",
					r, Action{Update, stage, p.updated + s.Every - 1}, s.Every)
			}
		}
	}
	return nil
}

// PeakActivations returns, for each rank, the largest number of micro-batches that it has stashed at a time, each counted
// once for each of the rank's stages: from the start of the forward pass to the end of Backward or WeightGrad.
func (s Schedule) PeakActivations() []int {
	peaks := make([]int, len(s.Ranks))
	for r, list := range s.Ranks {
		stashed := 0
		for _, a := range list {
			switch a.Pass {
			case Forward:
				stashed++
				peaks[r] = max(peaks[r], stashed)
			case Backward, WeightGrad:
				stashed--
			}
		}
	}
	return peaks
}
