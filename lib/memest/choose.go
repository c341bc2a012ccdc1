package memest

import (
	"fmt"
	"math"

	"github.com/shardbook/shardbook/lib/recompute"
)

// Steps lists the operations of all blocks in order, nine a block, with the bytes that a device keeps of each for the
// backward pass, and the floating-point operations of making it again: what [recompute.Choose] chooses from. Matrix
// products count two for each multiplication, and all else 20 for each number that it makes, since memory bounds it.
// An invalid setup is an error.
func Steps(s Setup) ([]recompute.Step, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	s = s.whole()
	keeps, err := s.keeps(newSheet(s.vars()))
	if err != nil {
		return nil, fmt.Errorf("memest: %w", err)
	}
	block := make([]recompute.Step, len(recompute.AllOps()))
	for _, k := range keeps {
		block[k.op].Bytes += k.bytes
	}
	m, l := s.Model, s.Layout
	tokens := float64(s.Batch) * float64(s.Seq) / float64(l.Context)
	width, heads, inner := float64(m.Width), float64(m.Heads*m.HeadDim()), float64(m.MLPWidth())
	pairs := tokens * float64(s.Seq) * float64(m.Heads)
	up := 1.0
	if m.Gated {
		up = 2
	}
	const elementwise = 20
	for op, flops := range map[recompute.Op]float64{
		recompute.Norm1:  elementwise * tokens * width,
		recompute.QKV:    2 * tokens * width * float64((m.Heads+2*m.KV())*m.HeadDim()),
		recompute.Scores: 2*tokens*float64(s.Seq)*heads + elementwise*pairs,
		recompute.Mix:    2 * tokens * float64(s.Seq) * heads,
		recompute.Mid:    2*tokens*heads*width + elementwise*tokens*width,
		recompute.Norm2:  elementwise * tokens * width,
		recompute.Up:     up * 2 * tokens * width * inner,
		recompute.Act:    elementwise * tokens * inner,
		recompute.Down:   2*tokens*inner*width + elementwise*tokens*width,
	} {
		block[op].Cost = flops / float64(l.Tensor)
	}
	steps := make([]recompute.Step, 0, m.Layers*len(block))
	for i := range m.Layers {
		for op, step := range block {
			step.Name = fmt.Sprintf("%s of block %d", recompute.Op(op), i)
			steps = append(steps, step)
		}
	}
	for i := range steps {
		// The mean of the values is made of the weights, of which XLA then makes a copy: more than is saved.
		steps[i].Always = recompute.Op(i%len(block)) == recompute.Mix
	}
	steps[len(steps)-1].Always = true // it is what the head is given
	return steps, nil
}

// Recompute returns a policy that makes little again and whose estimate is within a budget for each device, in bytes:
// the cheapest of those with names and of those that dynamic programming over the operations of all blocks
// ([recompute.Choose]) finds for several amounts of room. What a moment of the backward pass needs besides is no part
// of that choice, only of the estimate, so a cheaper one may exist. An error says when none was found that fits. The
// setup's own policy is not looked at.
func Recompute(s Setup, budget int64) (recompute.Policy, error) {
	s.Recompute = recompute.None
	steps, err := Steps(s)
	if err != nil {
		return "", err
	}
	blocks, ops := s.Model.Layers, len(recompute.AllOps())
	var best recompute.Policy
	cheapest, least := math.Inf(1), int64(math.MaxInt64)
	// try looks at a policy, and says whether it fits.
	try := func(p recompute.Policy) (bool, error) {
		plan, err := p.Plan(blocks)
		if err != nil {
			return false, err
		}
		s.Recompute = p
		l, err := Estimate(s)
		if err != nil {
			return false, err
		}
		var cost float64
		for i, step := range steps {
			if plan[i/ops].Has(recompute.Op(i % ops)) {
				cost += step.Cost
			}
		}
		needs := l.BytesPerDevice()
		least = min(least, needs)
		if needs <= budget && cost < cheapest {
			best, cheapest = p, cost
		}
		return needs <= budget, nil
	}
	named := []recompute.Policy{recompute.None, recompute.Recomputing(recompute.Norm1, recompute.Norm2),
		recompute.Recomputing(recompute.Act),
		recompute.Selective, recompute.SubLayers, recompute.Block}
	for k := 2; k <= min(blocks, 16); k++ {
		named = append(named, recompute.Every(k))
	}
	for _, p := range named {
		if _, err := try(p); err != nil {
			return "", err
		}
		if best == recompute.None && cheapest == 0 {
			return recompute.None, nil
		}
	}
	var low, high int64 // room for activations: too little, and enough for all
	for _, step := range steps {
		high += step.Bytes
	}
	for range 10 {
		room := low + (high-low)/2
		keep, _, _, err := recompute.Choose(steps, room)
		if err != nil { // too little for any choice
			low = room
			continue
		}
		plan, err := recompute.PlanOf(keep)
		if err != nil {
			return "", err
		}
		fits, err := try(plan.Policy())
		if err != nil {
			return "", err
		}
		if fits {
			low = room
		} else {
			high = room
		}
	}
	if math.IsInf(cheapest, 1) {
		return "", fmt.Errorf("memest: no recomputation was found that brings a device within %d bytes: the "+
			"least is %d; see Advise", budget, least)
	}
	return best, nil
}
