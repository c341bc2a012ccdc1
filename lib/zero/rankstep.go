package zero

import (
	"context"
	"errors"
	"fmt"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/train"
)

// Step implements [Trainer]. The loss is the mean over the rank's own rows; the mean over the ranks is the whole batch's.
func (r *Rank) Step(ctx context.Context, inputs, targets *tensors.Tensor) (train.Metrics, error) {
	if r.lost != nil {
		return train.Metrics{}, r.lost
	}
	if err := train.CheckBatch(r.engine.recipe.Model, inputs, targets); err != nil {
		return train.Metrics{}, err
	}
	parts, err := rank.MicroBatches(inputs, targets, r.world.Rank(), r.world.Size(), r.engine.options.Accumulate)
	if err != nil {
		return train.Metrics{}, err
	}
	r.memory.begin()
	m, err := r.step(ctx, parts)
	if err != nil {
		return m, r.lose(fmt.Errorf("step %d: %w", r.steps, err))
	}
	r.steps++
	return m, nil
}

func (r *Rank) step(ctx context.Context, parts []rank.MicroBatch) (m train.Metrics, err error) {
	if err := r.engine.kinds.Check(r.engine.backend.Text, r.engine.passes, parts[0].Inputs.Shape()); err != nil {
		return m, err
	}
	loss, err := r.passes(ctx, parts)
	if err != nil {
		return m, err
	}
	fresh, m, err := r.renewed(ctx, float32(loss/float64(len(parts))), 1/float64(r.world.Size()*len(parts)))
	if err != nil {
		return m, err
	}
	if r.engine.options.Stage == 1 { // whole ones are not kept
		if err := rank.Free(r.grads...); err != nil {
			return m, err
		}
		clear(r.grads)
	}
	defer r.span(trace.Gather, "parameters")()
	return m, r.renew(ctx, fresh)
}

// passes makes all micro-batches' passes, and returns the sum of their losses.
func (r *Rank) passes(ctx context.Context, parts []rank.MicroBatch) (loss float64, err error) {
	tasks := (2*len(r.blocks) + len(r.units)) * 2 * len(parts) // more than there are
	stream := rank.NewStream(tasks)
	defer func() {
		defer r.span(trace.Wait, "gradients")()
		err = errors.Join(stream.Finish(), err, rank.Free(r.onStream...)) // the failure of the group explains what comes of it
		r.onStream = nil
	}()
	for i, part := range parts {
		p := &rankPass{Rank: r, ctx: ctx, stream: stream, batch: part, first: i == 0, last: i == len(parts)-1, partial: make([]*tensors.Tensor, len(r.units))}
		if r.engine.options.Stage == 3 {
			p.coming = r.stays()
		}
		l, err := p.run()
		if err != nil {
			return 0, err
		}
		loss += l
	}
	return loss, nil
}

// renewed makes the update, and returns the new shards of the weights, in the type to compute in.
func (r *Rank) renewed(ctx context.Context, loss float32, factor float64) (fresh []*tensors.Tensor, m train.Metrics, err error) {
	defer r.span(trace.Compute, "update")()
	offloaded := r.engine.options.Offload
	grads := r.grads
	if offloaded {
		if grads, err = r.lowered(); err != nil {
			return nil, m, err
		}
	}
	kept := r.held.masters
	if kept == nil {
		kept = r.held.weights
	}
	var args []any
	for _, list := range [][]*tensors.Tensor{kept, r.held.rest, grads} {
		for _, t := range list {
			args = append(args, t)
		}
	}
	args = append(args, loss, float32(factor), int32(r.shard.Rank()))
	out, err := r.update.Run(ctx, r.shard, r.device, args)
	if err != nil {
		return nil, m, r.among(err)
	}
	n := len(r.units)
	old := r.held
	fresh, out = out[:n:n], out[n:]
	if r.held.masters != nil {
		r.held.masters, out = out[:n:n], out[n:]
	}
	last := len(out) - 1
	r.held.rest = out[:last:last]
	if m, err = train.MetricsOf(out[last]); err != nil {
		return nil, m, err
	}
	if !offloaded {
		return fresh, m, out[last].FinalizeAll()
	}
	for i, own := range fresh { // up to the device
		if fresh[i], err = r.raised(own); err != nil {
			return nil, m, err
		}
	}
	return fresh, m, errors.Join(rank.Free(append(old.masters, old.rest...)...), rank.Free(grads...))
}

func (r *Rank) span(stream, name string) func() {
	return r.engine.options.Trace.Start(r.world.Rank(), stream, name)
}
