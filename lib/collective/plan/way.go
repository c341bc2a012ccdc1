package plan

import (
	"errors"
	"fmt"
	"slices"
)

// Way is how operations are to be carried out: by an [Algorithm], or by a [*Plan] of one's own.
type Way interface {
	// For returns the plans for so many ranks: of an algorithm one of each of the operations, of a plan itself, which
	// must be of one of them.
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

// For implements [Way]. It is an error if the plan is for others, if it is not right ([Plan.Prove]), and of an
// all-reduce if ranks would not end with the same bits ([Plan.SameBits]).
func (p *Plan) For(ranks int, ops ...Op) ([]*Plan, error) {
	switch {
	case p == nil:
		return nil, fmt.Errorf("plan: the plan for %d ranks is nil: give one, or an algorithm", ranks)
	case p.Ranks != ranks:
		return nil, fmt.Errorf("plan: the plan is for %d ranks, and there are %d: make one for so many", p.Ranks, ranks)
	case !slices.Contains(ops, p.Op):
		return nil, fmt.Errorf("plan: the plan is of %v: want one of %v", p.Op, ops)
	}
	same, err := p.SameBits()
	if err == nil && !same && p.Op == AllReduce {
		err = errors.New("plan: ranks add in different orders, and would end with different bits: have one add for all")
	}
	if err != nil {
		return nil, err
	}
	return []*Plan{p}, nil
}
