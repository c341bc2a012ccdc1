package engine

import (
	"context"
	"iter"
	"slices"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/step"
)

// Evaluate returns the mean loss over a batch, without noise, and changes nothing. Batches are as in [Rank.Step]. It is
// a collective call. Errors make the rank unusable, as those of a step do.
func (r *Rank) Evaluate(ctx context.Context, inputs, targets *tensors.Tensor) (float64, error) {
	if r.failed != nil {
		return 0, r.failed
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
	own.passes.Keep = false // no backward pass, and without noise blocks need not have gradients
	if r.evaluation == nil {
		if r.evaluation, err = r.ready(&own, forwardOnly(r.Plans[0])); err != nil {
			return 0, err
		}
	}
	e := *r // with the same arrays
	e.own = &own
	m, err := e.step(ctx, r.evaluation, parts)
	if err != nil {
		return 0, r.fail(err)
	}
	return m.Loss, nil
}

// forwardOnly returns the forward passes of a plan, with their communication.
func forwardOnly(p *step.Plan) *step.Plan {
	q := p.Clone()
	q.Weights, q.Every = step.Flush, q.Micro // all use the newest version
	for r, list := range p.Ranks {
		q.Ranks[r] = nil
		for i, op := range list {
			kind := op.Kind
			if kind == step.Wait {
				kind = op.Of
			}
			keep := kind == step.Forward || (kind == step.Send || kind == step.Recv) && op.What == step.Activation
			if op.What == step.Parameters {
				keep = op.Kind == step.Gather && forwards(p, slices.All(list[i+1:]), op.Unit) ||
					op.Kind == step.Free && forwards(p, slices.Backward(list[:i]), op.Unit)
			}
			if keep {
				q.Ranks[r] = append(q.Ranks[r], op)
			}
		}
	}
	return q
}

// forwards reports whether a forward pass uses a unit's parameters before they are gathered or freed.
func forwards(p *step.Plan, list iter.Seq2[int, step.Op], unit int) bool {
	for _, op := range list {
		switch {
		case op.Kind == step.Forward && slices.Contains(p.Blocks[op.Block].Units, unit):
			return true
		case (op.Kind == step.Gather || op.Kind == step.Free) && op.What == step.Parameters && op.Unit == unit:
			return false
		}
	}
	return false
}
