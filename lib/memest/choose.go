package memest

import (
	"fmt"
	"math"

	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/recompute"
)

// Steps lists the operations of all blocks in order, nine for each block: the bytes that a device saves of each for the
// backward pass, and the cost of recomputing it in FLOPs. It is the input of [recompute.Choose]. Matmuls cost two FLOPs
// for each multiply-add; other operations cost 20 for each element of their output, since they are memory-bound. It
// returns an error for an invalid setup.
func Steps(s Setup) ([]recompute.Step, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	s = s.withDefaults()
	saved, err := s.saved(newSheet(s.vars()))
	if err != nil {
		return nil, fmt.Errorf("memest: %w", err)
	}
	steps := make([]recompute.Step, 0, s.Model.Layers*len(recompute.AllOps()))
	dense := s.Model.Layers - s.Model.ExpertLayers()
	for i := range s.Model.Layers {
		kind := cost.Routed
		if i < dense {
			kind = cost.MLP
		}
		for op, flops := range s.blockCosts(kind) {
			step := recompute.Step{Name: fmt.Sprintf("%s of block %d", recompute.Op(op), i), Cost: flops}
			for _, k := range saved {
				if k.op == recompute.Op(op) && (k.only == "" || k.only == kind) {
					step.Bytes += k.bytes
				}
			}
			steps = append(steps, step)
		}
	}
	for i := range steps {
		// To recompute the attention output XLA copies the attention weights, which takes more memory than it saves.
		steps[i].Always = recompute.Op(i%len(recompute.AllOps())) == recompute.Mix
	}
	steps[len(steps)-1].Always = true // the head's input
	return steps, nil
}

// blockCosts returns the FLOPs of each operation of a block of a kind on a device.
func (s Setup) blockCosts(kind cost.Part) []float64 {
	m, l := s.Model, s.Parallelism
	tokens := float64(s.Batch) * float64(s.Seq) / float64(l.Context)
	width, inner := float64(m.Width), float64(m.MLPWidth())
	heads, values := float64(m.Heads*m.HeadDim()), float64(m.Heads*m.ValueDim())
	pairs := tokens * float64(s.Seq) * float64(m.Heads)
	up := 1.0
	if m.Gated {
		up = 2
	}
	qkv, router := 0., 0.
	for _, t := range m.Tensors() {
		if t.Part == cost.Attention && len(t.Dims) == 2 && t.Name != "h.o.w" {
			qkv += float64(t.Size())
		}
	}
	if kind == cost.Routed { // of all experts that a token is sent to
		inner, router = float64((m.ExpertsPerToken+m.SharedExperts)*m.ExpertWidth()), float64(m.Experts)
	}
	const elementwise = 20
	costs := make([]float64, len(recompute.AllOps()))
	for op, flops := range map[recompute.Op]float64{
		recompute.Norm1:  elementwise * tokens * width,
		recompute.QKV:    2 * tokens * qkv,
		recompute.Scores: 2*tokens*float64(s.Seq)*heads + elementwise*pairs,
		recompute.Mix:    2 * tokens * float64(s.Seq) * values,
		recompute.Mid:    2*tokens*values*width + elementwise*tokens*width,
		recompute.Norm2:  elementwise * tokens * width,
		recompute.Up:     2 * tokens * width * (up*inner + router),
		recompute.Act:    elementwise * tokens * inner,
		recompute.Down:   2*tokens*inner*width + elementwise*tokens*width,
	} {
		costs[op] = flops / float64(l.Tensor)
	}
	return costs
}

// Recompute returns a recomputation policy with which the estimate is within the budget (bytes on each device): the
// cheapest of the named policies and of those that [recompute.Choose] finds by dynamic programming for several amounts
// of saved activations. Choose does not see temporary memory, so a cheaper policy may exist. Recompute ignores the
// setup's own policy, and returns an error if no policy that it tries fits.
func Recompute(s Setup, budget int64) (recompute.Policy, error) {
	s.Recompute = recompute.None
	steps, err := Steps(s)
	if err != nil {
		return "", err
	}
	blocks, ops := s.Model.Layers, len(recompute.AllOps())
	var best recompute.Policy
	cheapest, least := math.Inf(1), int64(math.MaxInt64)
	// try notes a policy if it is the cheapest that fits, and reports whether it fits.
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
	var low, high int64 // bytes of saved activations: too few, and all
	for _, step := range steps {
		high += step.Bytes
	}
	for range 10 {
		room := low + (high-low)/2
		keep, _, _, err := recompute.Choose(steps, room)
		if err != nil { // too few for any choice
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
		return "", fmt.Errorf("memest: with every recomputation policy that was tried a device needs more than %d "+
			"bytes: at least %d; see Advise for other changes", budget, least)
	}
	return best, nil
}
