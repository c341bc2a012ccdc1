package memest

import (
	"fmt"

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
	steps[len(steps)-1].Always = true // it is what the head is given
	return steps, nil
}

// Recompute returns the policy that makes least again of all whose estimate is within a budget for each device, in bytes.
// It is found by dynamic programming over the operations of all blocks ([recompute.Choose]) for ever more room, so long
// as the whole estimate fits. An error says when nothing fits. The setup's own policy is not looked at.
func Recompute(s Setup, budget int64) (recompute.Policy, error) {
	steps, err := Steps(s)
	if err != nil {
		return "", err
	}
	policy := func(room int64) (recompute.Policy, int64, error) {
		keep, _, _, err := recompute.Choose(steps, room)
		if err != nil {
			return "", 0, err
		}
		plan, err := recompute.PlanOf(keep)
		if err != nil {
			return "", 0, err
		}
		s.Recompute = plan.Policy()
		l, err := Estimate(s)
		if err != nil {
			return "", 0, err
		}
		return s.Recompute, l.BytesPerDevice(), nil
	}
	none := s
	none.Recompute = recompute.None
	l, err := Estimate(none)
	if err != nil || l.BytesPerDevice() <= budget {
		return recompute.None, err
	}
	var best recompute.Policy
	least := int64(-1)
	low, high := int64(0), budget // room for activations: impossible, and more than there is
	for range 14 {
		room := low + (high-low)/2
		p, needs, err := policy(room)
		switch {
		case err != nil: // too little room for any choice
			low = room
		case needs <= budget:
			best, low = p, room
		default:
			high = room
		}
		if err == nil && (least < 0 || needs < least) {
			least = needs
		}
	}
	if best == "" {
		return "", fmt.Errorf("memest: no recomputation brings a device within %s: the least found is %s; see Advise", GB(budget), GB(least))
	}
	return best, nil
}
