package plan

import (
	"errors"
	"fmt"
	"slices"
)

// Way is how to carry operations out: an [Algorithm], or a [*Plan] of the caller's.
type Way interface {
	// For returns the plans for a number of ranks: of an algorithm one for each of the operations; of a plan the plan
	// itself, which must be for one of them.
	For(ranks int, ops ...Op) ([]*Plan, error)
}

// For implements [Way]. It is an error if an operation has no such algorithm.
func (a Algorithm) For(ranks int, ops ...Op) ([]*Plan, error) {
	all := make([]*Plan, len(ops))
	for i, op := range ops {
		var err error
		if all[i], err = New(op, a, ranks); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// For implements [Way]. It is an error if the plan is for another number of ranks or another operation, if it is wrong
// ([Plan.Prove]), and if ranks would get different bits of an all-reduce ([Plan.SameBits]).
func (p *Plan) For(ranks int, ops ...Op) ([]*Plan, error) {
	switch {
	case p == nil:
		return nil, fmt.Errorf("plan: the plan for %d ranks is nil: give one, or an algorithm", ranks)
	case p.Ranks != ranks:
		return nil, fmt.Errorf("plan: the plan is for %d ranks, and there are %d: make one for these", p.Ranks, ranks)
	case !slices.Contains(ops, p.Op):
		return nil, fmt.Errorf("plan: the plan is of %v: want one of %v", p.Op, ops)
	}
	same, err := p.SameBits()
	if err == nil && !same && p.Op == AllReduce {
		err = errors.New("plan: ranks add in different orders, and would get different bits: have one rank add " +
			"each chunk")
	}
	if err != nil {
		return nil, err
	}
	return []*Plan{p}, nil
}
