package schedule

import (
	"fmt"
	"slices"
)

// place is where an action is: the rank, and its position in the rank's list.
type place struct{ rank, at int32 }

// nowhere is the place of an action that there is not.
var nowhere = place{-1, -1}

// index has the places of all passes of all stages for all micro-batches.
type index struct {
	microbatches int
	forward      []place // by stage and micro-batch
	backward     []place // Backward or InputGrad: what gives the stage before its gradient
	weightGrad   []place // Backward or WeightGrad: what adds to the gradient of the weights
}

func (x *index) key(a Action) int { return a.Stage*x.microbatches + a.Microbatch }

// index finds all passes. Errors: sizes that cannot be, actions of unknown stages, micro-batches or passes, a pass that is
// there twice or not at all or in two forms, a stage's passes for one micro-batch on several ranks or in the wrong order.
func (s Schedule) index() (*index, error) {
	if err := s.head(); err != nil {
		return nil, err
	}
	n := s.Stages * s.Microbatches
	none := func() []place { return slices.Repeat([]place{nowhere}, n) }
	x := &index{microbatches: s.Microbatches, forward: none(), backward: none(), weightGrad: none()}
	for r, list := range s.Ranks {
		for i, a := range list {
			if err := s.known(a); err != nil {
				return nil, s.errorAt(r, i, "%w", err)
			}
			if err := x.add(s, a, place{int32(r), int32(i)}); err != nil {
				return nil, err
			}
		}
	}
	for i := range n {
		stage, m := i/s.Microbatches, i%s.Microbatches
		switch missing := "schedule: stage %d has no %s for micro-batch %d: add %v to rank %d"; {
		case x.forward[i] == nowhere:
			return nil, fmt.Errorf("schedule: stage %d has no forward pass for micro-batch %d: add %v to a rank",
				stage, m, Action{Forward, stage, m})
		case x.backward[i] == nowhere:
			return nil, fmt.Errorf(missing, stage, "backward pass", m, Action{Backward, stage, m}, x.forward[i].rank)
		case x.weightGrad[i] == nowhere:
			return nil, fmt.Errorf(missing, stage, "weight gradient", m, Action{WeightGrad, stage, m}, x.forward[i].rank)
		}
	}
	return x, nil
}

// add enters one action. Those of one stage and micro-batch come in the order of one rank's list, so that what must come
// before it is in the index already.
func (x *index) add(s Schedule, a Action, p place) error {
	if a.Pass == Update {
		return nil
	}
	k := x.key(a)
	places, before := []*place{&x.forward[k]}, nowhere
	switch a.Pass {
	case Backward:
		places, before = []*place{&x.backward[k], &x.weightGrad[k]}, x.forward[k]
	case InputGrad:
		places, before = []*place{&x.backward[k]}, x.forward[k]
	case WeightGrad:
		places, before = []*place{&x.weightGrad[k]}, x.backward[k]
	}
	for _, there := range places {
		if *there != nowhere {
			other := s.Ranks[there.rank][there.at]
			if other != a {
				return s.errorAt(int(p.rank), int(p.at), "rank %d has %v at position %d already: keep B, or I and W",
					there.rank, other, there.at)
			}
			return s.errorAt(int(p.rank), int(p.at), "it is at position %d of rank %d already: remove one", there.at, there.rank)
		}
		*there = p
	}
	if a.Pass == Forward {
		return nil
	}
	needs := "the forward pass"
	if a.Pass == WeightGrad {
		needs = "the input gradient"
	}
	if before == nowhere {
		return s.errorAt(int(p.rank), int(p.at), "it comes before %s of the micro-batch, or on another rank: move it behind", needs)
	}
	if before.rank != p.rank {
		return s.errorAt(int(p.rank), int(p.at),
			"rank %d has %s of the micro-batch: all passes of a stage for one must be on one rank", before.rank, needs)
	}
	return nil
}

// head checks the sizes.
func (s Schedule) head() error {
	actions := 0
	for _, list := range s.Ranks {
		actions += len(list)
	}
	switch {
	case len(s.Ranks) == 0:
		return fmt.Errorf("schedule: no ranks: give at least one")
	case s.Stages < 1:
		return fmt.Errorf("schedule: %d stages: give at least 1", s.Stages)
	case s.Microbatches < 1:
		return fmt.Errorf("schedule: %d micro-batches: give at least 1", s.Microbatches)
	case s.Microbatches > actions/s.Stages: // so that memory is bounded by what there is
		return fmt.Errorf("schedule: %d actions are too few for %d stages and %d micro-batches", actions, s.Stages, s.Microbatches)
	case s.Every < 1 || s.Microbatches%s.Every != 0:
		return fmt.Errorf("schedule: an update every %d micro-batches: give a divisor of the %d micro-batches",
			s.Every, s.Microbatches)
	}
	switch s.Weights {
	case Flush:
		if s.Every != s.Microbatches {
			return fmt.Errorf("schedule: an update every %d of %d micro-batches with weights %q: give %d, or other weights",
				s.Every, s.Microbatches, s.Weights, s.Microbatches)
		}
	case Stash, Vertical, Double:
	default:
		return fmt.Errorf("schedule: unknown weights %q: use %s, %s, %s or %s", s.Weights, Flush, Stash, Vertical, Double)
	}
	return nil
}

// known refuses an action of what the schedule does not have.
func (s Schedule) known(a Action) error {
	switch a.Pass {
	case Forward, Backward, InputGrad, WeightGrad, Update:
	default:
		return fmt.Errorf("unknown pass %q: use F, B, I, W or U", byte(a.Pass))
	}
	if a.Stage < 0 || a.Stage >= s.Stages {
		return fmt.Errorf("stage %d: the model has stages 0 to %d", a.Stage, s.Stages-1)
	}
	if a.Microbatch < 0 || a.Microbatch >= s.Microbatches {
		return fmt.Errorf("micro-batch %d: there are micro-batches 0 to %d", a.Microbatch, s.Microbatches-1)
	}
	return nil
}

// errorAt is an error that says where.
func (s Schedule) errorAt(rank, at int, format string, args ...any) error {
	return fmt.Errorf("schedule: rank %d, position %d, %v: %w", rank, at, s.Ranks[rank][at], fmt.Errorf(format, args...))
}

// input returns the action on whose output an action waits, and whether there is one. What comes earlier on the same rank does not
// count.
func (x *index) input(s Schedule, a Action) (producer place, ok bool) {
	stage, ok := a.InputFrom(s.Stages)
	return x.pass(a, stage, ok)
}

// output returns the action that waits for an action's output, and whether there is one.
func (x *index) output(s Schedule, a Action) (consumer place, ok bool) {
	stage, ok := a.OutputTo(s.Stages)
	return x.pass(a, stage, ok)
}

// pass returns where another stage, if it is one, makes the pass that an action makes, which is split or not.
func (x *index) pass(a Action, stage int, is bool) (place, bool) {
	switch a.Stage = stage; {
	case !is:
		return nowhere, false
	case a.Pass == Forward:
		return x.forward[x.key(a)], true
	}
	return x.backward[x.key(a)], true
}
