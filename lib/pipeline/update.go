package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/train"
)

// stages is how many stages the rank has.
func (r *Rank) stages() int { return len(r.pipeline.options.Schedule.On(r.at)) }

// scaling are the states of the loss scaling.
func (r *Rank) scaling() []*tensors.Tensor {
	_, scaling, _ := train.Tail(r.own.Recipe, r.rest)
	return scaling
}

// sumsOf returns where the gradients of a block's parameters add up.
func (r *Rank) sumsOf(i int) ([]*tensors.Tensor, error) {
	if r.sums[i] == nil {
		for _, at := range r.pipeline.blocks[i].params {
			shape := shapes.Make(r.pipeline.policy.Reduce, r.pipeline.tree[at].Shape.Dimensions...)
			t, err := r.pipeline.backend.Put(tensors.FromShape(shape), r.device)
			if err != nil {
				return nil, err
			}
			r.sums[i] = append(r.sums[i], t)
		}
	}
	return r.sums[i], nil
}

// update makes a version of the weights, of the gradients since the last one.
func (w *worker) update(ctx context.Context, version int, loss float32) (err error) {
	grads, free, err := w.gradients()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rank.Free(free...)) }()
	if err := w.share(ctx, grads); err != nil {
		return err
	}
	stay := slices.Contains(w.pipeline.player.versions[w.at][w.done+1:], w.version) // a later pass uses them
	program, err := w.pipeline.updateOf(w.own, stay)
	if err != nil {
		return err
	}
	o := w.pipeline.options
	args := appendAll(nil, w.weights[w.version], w.rest, grads)
	args = append(args, loss, float32(1/float64(o.Schedule.Every*o.Replicas)))
	out, err := program.Run(ctx, w.pipe, w.device, args)
	if err != nil {
		return rank.Within(w.pipeline.Pipe(w.world.Rank()), err)
	}
	n, last := len(w.own.Tree), len(out)-1
	if !stay {
		delete(w.weights, w.version) // they were donated
	}
	w.version, w.weights[version], w.rest = version, out[:n:n], out[n:last]
	o.Trace.Count(w.world.Rank(), "weight versions", int64(len(w.weights)))
	clear(w.some)
	w.metrics, err = train.MetricsOf(out[last])
	return errors.Join(err, rank.Free(out[last]))
}

// gradients returns the sums of the gradients of the rank's parameters, and what of them is to be freed. A parameter of several
// blocks has the sum of theirs.
func (w *worker) gradients() (grads, free []*tensors.Tensor, err error) {
	parts := make([][]*tensors.Tensor, len(w.own.Tree))
	for _, i := range w.own.Blocks {
		sums, err := w.sumsOf(i)
		if err != nil {
			return nil, nil, err
		}
		for k, at := range w.pipeline.blocks[i].params {
			parts[w.local[at]] = append(parts[w.local[at]], sums[k])
		}
	}
	for _, p := range parts {
		sum := p[0]
		if len(p) > 1 {
			out, err := w.pipeline.add.Call(w.device, appendAll(nil, p)...)
			if err != nil {
				return nil, free, err
			}
			sum = out[0]
			free = append(free, sum)
		}
		grads = append(grads, sum)
	}
	return grads, free, nil
}

// share adds up the gradients of parameters that several ranks have: of other pipelines, and of this one.
func (w *worker) share(ctx context.Context, grads []*tensors.Tensor) error {
	for set := range w.pipeline.Sets {
		g := w.sets[set]
		if g == nil {
			continue
		}
		end := w.pipeline.options.Trace.Start(w.world.Rank(), trace.Reduce, fmt.Sprintf("gradients of ranks %v", w.pipeline.Sets[set]))
		for i, of := range w.own.Set {
			if of != set {
				continue
			}
			kind, memory, err := rank.Memory(grads[i])
			if err != nil {
				return err
			}
			if err := g.Do(ctx, group.Call{Kind: group.KindAllReduce, Type: kind, Op: group.Sum, In: memory, Out: memory}); err != nil {
				return rank.Within(w.pipeline.Members(set, w.pipeline.options.Replicas), err)
			}
		}
		end()
	}
	return nil
}

// forget frees versions of the weights that no action after this one uses.
func (w *worker) forget(action int) {
	for version, weights := range w.weights {
		if version != w.version && !slices.Contains(w.pipeline.player.versions[w.at][action+1:], version) {
			_ = rank.Free(weights...)
			delete(w.weights, version)
		}
	}
}
