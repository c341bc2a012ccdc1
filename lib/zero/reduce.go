package zero

import (
	"context"
	"errors"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/trace"
)

// take takes the whole gradients of a unit. Stage 1 adds them up, and reduces them in the last micro-batch; stages 2 and 3
// reduce them at once, and add up the shards.
func (p *rankPass) take(u int, whole *tensors.Tensor) (err error) {
	if p.engine.options.Stage > 1 {
		p.onStream = append(p.onStream, whole)
		return p.inBackground(u, func() error { return p.reduceToShard(u, whole) })
	}
	bytes := whole.Shape().ByteSize()
	if p.first {
		p.grads[u] = whole
		p.memory.add(memest.Communication, -bytes)
		p.memory.add(memest.Gradients, bytes)
	} else if p.grads[u], err = p.plus(p.grads[u], whole); err != nil {
		return err
	}
	if !p.last {
		return nil
	}
	return p.inBackground(u, func() error { return p.reduceToRow(u) })
}

// inBackground reduces, and waits where too much is being reduced already: it would all be whole at once.
func (p *rankPass) inBackground(u int, do func() error) error {
	p.reducing = append(p.reducing, p.stream.Add(func() error {
		defer p.span(trace.Reduce, p.units[u].name)()
		return do()
	}))
	for p.engine.options.Stage > 1 && len(p.reducing) > 1+p.engine.options.Prefetch {
		end := p.span(trace.Wait, "gradients")
		<-p.reducing[0]
		end()
		p.reducing = p.reducing[1:]
	}
	return nil
}

// reduceToShard makes of whole gradients, which it frees, the shard of their sum.
func (p *rankPass) reduceToShard(u int, whole *tensors.Tensor) (err error) {
	if p.grads[u] == nil {
		if p.grads[u], err = p.zeros(whole.DType(), p.units[u].size); err != nil {
			return errors.Join(err, whole.FinalizeAll())
		}
		p.memory.add(memest.Gradients, p.grads[u].Shape().ByteSize())
	}
	shard := p.grads[u]
	if !p.first {
		if shard, err = p.borrow(whole.DType(), p.units[u].size); err == nil {
			defer p.pool.GiveBack(shard)
		}
	}
	if err == nil {
		err = p.scatter(p.ctx, whole, shard)
	}
	p.memory.add(memest.Communication, -whole.Shape().ByteSize())
	if err = errors.Join(err, whole.FinalizeAll()); err != nil {
		return err
	}
	if !p.first {
		out, err := p.add.Call(p.device, p.grads[u], shard)
		if err != nil {
			return err
		}
		p.grads[u] = out[0]
	}
	if p.last {
		return p.average(p.ctx, p.grads[u])
	}
	return nil
}

// reduceToRow replaces the rank's row of whole gradients by that of their sum.
func (p *rankPass) reduceToRow(u int) error {
	whole := p.grads[u]
	shard, err := p.borrow(whole.DType(), p.units[u].size)
	if err != nil {
		return err
	}
	defer p.pool.GiveBack(shard)
	if err := p.scatter(p.ctx, whole, shard); err != nil {
		return err
	}
	if err := p.average(p.ctx, shard); err != nil {
		return err
	}
	from, err := memoryBytes(shard)
	if err != nil {
		return err
	}
	to, err := memoryBytes(whole)
	copy(to[min(len(to), p.shard.Rank()*len(from)):], from)
	return err
}

// memoryBytes is a tensor's memory: no copy.
func memoryBytes(t *tensors.Tensor) ([]byte, error) {
	kind, data, err := rank.Memory(t)
	return rank.Bytes(kind, data), err
}

// scatter sums whole gradients over the ranks that share a copy of the state, of which each gets its shard.
func (r *Rank) scatter(ctx context.Context, whole, shard *tensors.Tensor) error {
	return r.among(between(ctx, r.shard, group.KindReduceScatter, whole, shard))
}

// average adds up the copies' shards, where there are several copies.
func (r *Rank) average(ctx context.Context, shard *tensors.Tensor) error {
	if r.replicas == nil {
		return nil
	}
	return rank.Within(rank.Numbers(r.shard.Rank(), r.shards, r.replicas.Size()), between(ctx, r.replicas, group.KindAllReduce, shard, shard))
}
