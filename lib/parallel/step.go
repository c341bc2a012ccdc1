package parallel

import (
	"context"
	"errors"
	"fmt"

	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/train"
)

// makeUpdate makes a step of the sums of the gradients.
func (w *worker) makeUpdate(ctx context.Context) error {
	p, loss := w.programs, w.loss/float64(len(w.parts))
	var out []*dtensor.Tensor
	var err error
	if p.update != nil {
		out, err = w.call(p.update, append(anyOf(w.sums, w.state), float32(loss))...)
	} else {
		out, err = w.updateWithOthers(ctx, float32(loss))
	}
	if err != nil {
		return err // what is left of the sums Close frees
	}
	w.sums = nil // they were donated
	n, last := len(w.state), len(out)-1
	err = free(w.Rank.besides...)
	w.state, w.Rank.besides = out[:n:n], nil
	if last > n {
		w.Rank.besides = out[n:last]
	}
	var e error
	w.metrics, e = train.MetricsOf(out[last].Shards()[0])
	w.metrics.Loss = loss
	return errors.Join(err, e, free(out[last]))
}

// updateWithOthers does it together with the ranks that have parameters in common, or where all ask for totals.
func (w *worker) updateWithOthers(ctx context.Context, loss float32) ([]*dtensor.Tensor, error) {
	p := w.programs
	grads, err := w.call(p.reduce, anyOf(w.sums)...)
	if err != nil {
		return nil, err
	}
	w.sums = grads // in their place, so that Close frees them
	placements := w.gradPlacements()
	for set := range w.Sets {
		g := w.sets[set]
		if g == nil {
			continue
		}
		end := w.options.Trace.Start(w.world.Rank(), trace.Reduce, fmt.Sprintf("gradients of ranks %v", w.Sets[set]))
		for i, of := range w.Set {
			if of != set {
				continue
			}
			host, err := merged(grads[i])
			if err == nil {
				w.traffic.sent[BetweenRanks] += host.Shape().ByteSize()
				err = errors.Join(addUp(ctx, g, host), free(grads[i]))
			}
			if err == nil {
				grads[i], err = w.mesh.Place(host, placements[i])
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", w.Tree[i].Name, rank.Within(w.Members(set, w.layout.Replicas), err))
			}
		}
		end()
	}
	args := append(anyOf(w.state, grads), loss)
	if w.asks() {
		out, err := w.call(p.totals, anyOf(grads, scalingOf(w.Plan, w.state))...)
		if err != nil {
			return nil, err
		}
		totals, err := merged(out[0])
		if err := errors.Join(err, free(out[0])); err != nil {
			return nil, err
		}
		if err := addUp(ctx, w.pipe, totals); err != nil {
			return nil, rank.Within(w.Pipe(w.world.Rank()), err)
		}
		args = append(args, totals)
	}
	return w.call(p.apply, args...)
}

// addUp sums a tensor of the host over a group.
func addUp(ctx context.Context, g group.Group, t *tensors.Tensor) error {
	return rank.OnHost(t, func(kind group.Type, memory group.Buffer) error {
		return g.Do(ctx, group.Call{Kind: group.KindAllReduce, Type: kind, Op: group.Sum, In: memory, Out: memory})
	})
}

func anyOf(lists ...[]*dtensor.Tensor) (all []any) {
	for _, list := range lists {
		for _, v := range list {
			all = append(all, v)
		}
	}
	return all
}
