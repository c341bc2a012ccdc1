package paramserver

import (
	"context"
	"errors"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/train"
)

// push gives a bucket's gradients to its server.
func (c *client) push(bucket int, kind group.Type, grads group.Buffer) error {
	c.asked++
	to := bucket % c.rank.servers()
	if to != c.rank.g.Rank() {
		return c.send(to, pushed, bucket, 0, group.Call{Kind: group.KindSend, Type: kind, Peer: to, In: grads})
	}
	sh := c.shards[bucket]
	into, _, data, err := sh.room()
	if err != nil {
		return err
	}
	copy(rank.Bytes(kind, data), rank.Bytes(kind, grads))
	return c.take(sh, to, into)
}

// pull takes the new parameters of all buckets that were pushed, and returns how stale their gradients were on average.
func (c *client) pull(ctx context.Context) (staleness float64, err error) {
	defer c.rank.span(trace.Wait, "parameters")()
	if !c.rank.engine.options.Async { // no answer comes before; and who is late is named here
		if err := group.Barrier(ctx, c.rank.g); err != nil {
			return 0, err
		}
	}
	buckets := c.rank.engine.buckets
	for ; c.asked > 0; c.asked-- {
		var a answer
		select {
		case a = <-c.answers:
		case <-ctx.Done():
			return 0, rank.Ended(ctx, c.rank.g)
		case <-c.ctx.Done():
			return 0, errors.Join(rank.Ended(c.ctx, c.rank.g), context.Cause(c.ctx))
		}
		staleness += float64(a.staleness) / float64(len(buckets))
		for _, place := range buckets[a.bucket].Places {
			kind, data, err := rank.Memory(c.rank.state[place])
			if err != nil {
				return 0, err
			}
			a.params = a.params[copy(rank.Bytes(kind, data), a.params):]
		}
	}
	return staleness, nil
}

// close ends what goes on between the ranks, which all call it. After an error it ends it for this rank.
func (c *client) close(lost error) error {
	err := lost
	g, servers := c.rank.g, c.rank.servers()
	tell := func(what, ranks int) {
		for other := range ranks {
			if other == g.Rank() || other >= servers && g.Rank() >= servers || err != nil {
				continue
			}
			err = c.send(other, what, 0, 0, group.Call{})
		}
	}
	tell(leaving, servers)
	if err == nil {
		c.left.Wait() // then nobody waits for an answer
		for _, out := range c.out {
			if out != nil {
				close(out)
			}
		}
		tell(closing, g.Size())
	}
	if err != nil {
		c.cancel(err)
	}
	c.loops.Wait()
	if lost == nil && err == nil {
		err = context.Cause(c.ctx)
	}
	c.cancel(nil)
	for _, sh := range c.shards {
		err = errors.Join(err, rank.Free(sh.values...), rank.Free(sh.waiting...))
	}
	if lost != nil {
		return nil
	}
	return err
}

// send sends another rank a message, and the data of a call after it, where that has some.
func (c *client) send(to, what, bucket int, staleness int64, data group.Call) error {
	c.rank.sends[to] <- struct{}{}
	defer func() { <-c.rank.sends[to] }()
	g := c.rank.counted()
	err := group.Send(c.ctx, g, []int64{int64(what), int64(bucket), staleness}, to)
	if err == nil && data.In.Len > 0 {
		err = g.Do(c.ctx, data)
	}
	c.note(err) // now: no other message may follow a half one
	return err
}

// collect returns the whole state, from the servers that have its parts. It is a collective call.
func (r *Rank) collect(ctx context.Context) (state []*tensors.Tensor, err error) {
	if err := group.Barrier(ctx, r.g); err != nil { // then no server has anything to do
		return nil, err
	}
	if state, err = r.zeros(); err != nil {
		return nil, err
	}
	var updates int32
	for b := range r.engine.buckets {
		if err != nil {
			break
		}
		var values []*tensors.Tensor
		for _, at := range r.places(b) {
			values = append(values, state[at])
		}
		owner, number := b%r.servers(), []int64{0}
		if owner == r.g.Rank() {
			own := r.client.shards[b]
			err, number[0] = copyTo(values, own.values), own.updates
		}
		err = errors.Join(err, r.broadcast(ctx, values, owner), group.Broadcast(ctx, r.g, number, owner))
		updates = int32(number[0])
	}
	_, _, counters := train.Tail(r.engine.recipe, state)
	for i, n := range []int32{int32(r.steps), updates} {
		counter, e := r.engine.backend.Put(n, r.device)
		err = errors.Join(err, e, rank.Free(counters[i]))
		counters[i] = counter
	}
	if err != nil {
		return nil, errors.Join(err, rank.Free(state...))
	}
	return state, nil
}

// zeros is a state of zeros on the rank's device.
func (r *Rank) zeros() (state []*tensors.Tensor, err error) {
	for _, s := range r.engine.recipe.State() {
		v, err := r.engine.backend.Put(tensors.FromShape(s.Shape), r.device)
		if err != nil {
			return nil, errors.Join(err, rank.Free(state...))
		}
		state = append(state, v)
	}
	return state, nil
}

// copyTo copies tensors into the memory of others.
func copyTo(to, from []*tensors.Tensor) error {
	for i := range to {
		kind, a, err := rank.Memory(to[i])
		_, b, e := rank.Memory(from[i])
		if err = errors.Join(err, e); err != nil {
			return err
		}
		copy(rank.Bytes(kind, a), rank.Bytes(kind, b))
	}
	return nil
}
