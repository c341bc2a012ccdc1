package engine

import (
	"context"
	"slices"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/step"
)

// Evaluate returns the mean loss over a batch, without noise, and changes nothing. Batches are as those of [Rank.Step]. It is a
// collective call, whose errors lose the rank as those of a step do.
func (r *Rank) Evaluate(ctx context.Context, inputs, targets *tensors.Tensor) (float64, error) {
	if r.lost != nil {
		return 0, r.lost
	}
	parts, err := r.parts(inputs, targets)
	if err != nil {
		return 0, err
	}
	if err := r.prepare(parts[0]); err != nil {
		return 0, err
	}
	quiet := *r.common
	quiet.model.Noisy = false
	own := *r.own
	own.common, own.passes.Model.Noisy = &quiet, false
	own.passes.Keep = false // there is no backward pass, nor need the blocks have gradients without noise
	if r.evaluation == nil {
		if r.evaluation, err = r.ready(&own, forwardOnly(r.Plans[0])); err != nil {
			return 0, err
		}
	}
	e := *r // with the same arrays
	e.own = &own
	m, err := e.step(ctx, r.evaluation, parts)
	if err != nil {
		return 0, r.lose(err)
	}
	return m.Loss, nil
}

// forwardOnly is the forward passes of a plan, with what belongs to them.
func forwardOnly(p *step.Plan) *step.Plan {
	q := p.Clone()
	q.Weights = step.Flush // the newest version for all
	for r, list := range p.Ranks {
		q.Ranks[r] = nil
		open := map[int]int{} // by unit: where it is gathered, in the new list
		used := map[int]bool{}
		drop := func(at int) {
			q.Ranks[r] = slices.Delete(q.Ranks[r], at, at+1)
			for u := range open {
				if open[u] > at {
					open[u]--
				}
			}
		}
		for _, op := range list {
			switch {
			case op.Kind == step.Forward:
				for _, u := range p.Blocks[op.Block].Units {
					used[u] = true
				}
			case (op.Kind == step.Send || op.Kind == step.Recv || op.Kind == step.Wait && (op.Of == step.Send || op.Of == step.Recv)) &&
				op.What == step.Activation:
			case op.What == step.Parameters && op.Kind == step.Gather:
				open[op.Unit], used[op.Unit] = len(q.Ranks[r]), false
			case op.What == step.Parameters && op.Kind == step.Free:
				if !used[op.Unit] {
					drop(open[op.Unit])
					continue
				}
			default:
				continue
			}
			q.Ranks[r] = append(q.Ranks[r], op)
		}
		for u, at := range open { // what an update gathers anew
			if !used[u] && at < len(q.Ranks[r]) && q.Ranks[r][at].Kind == step.Gather && q.Ranks[r][at].Unit == u {
				drop(at)
			}
		}
	}
	return q
}
