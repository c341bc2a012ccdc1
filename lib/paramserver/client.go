package paramserver

import (
	"context"
	"errors"
	"sync"
	"unsafe"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/engine"
	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/collective/group"
)

// client is a rank's side of parameter servers, and the server that runs on the rank, if any. It is an [engine.Server].
type client struct {
	engine *Programs
	g      group.Group
	device int

	ctx       context.Context // ends with the first error
	cancel    context.CancelCauseFunc
	shards    map[int]*shard  // served by this rank, by bucket
	sends     []chan struct{} // by receiver: full while a message and its data are sent
	answers   chan answer     // to this rank
	loops     sync.WaitGroup
	closed    bool
	staleness float64 // of the gradients of a step: mean over the buckets
}

// Begin implements [engine.Server]. The first call starts the rank's server.
func (c *client) Begin(ctx context.Context, g group.Group, device int, state []*tensors.Tensor) error {
	first := c.cancel == nil
	if first {
		c.g, c.device, c.shards = g, device, map[int]*shard{}
		c.answers, c.sends = make(chan answer, 1), make([]chan struct{}, g.Size())
		for to := range c.sends {
			c.sends[to] = make(chan struct{}, 1)
		}
		c.ctx, c.cancel = context.WithCancelCause(ctx)
	}
	var err error
	for b := range c.engine.buckets {
		if b%c.servers() != g.Rank() || err != nil {
			continue
		}
		if first {
			c.shards[b] = &shard{client: c, bucket: b}
		}
		err = c.shards[b].begin(state)
	}
	if err == nil && first {
		c.listen()
	}
	if err == nil {
		err = group.Barrier(ctx, g) // nobody pushes before all have begun
	}
	if err != nil {
		return errors.Join(err, c.Close(err))
	}
	return nil
}

// Reduce implements [engine.Hook]: it pushes a bucket's gradients to their server, and pulls the new parameters.
func (c *client) Reduce(ctx context.Context, _ group.Group, grads engine.Gradients) error {
	data := unsafe.Slice((*byte)(grads.Data.Data), grads.Data.Len*grads.Type.Size())
	if err := c.push(grads.Unit, data); err != nil {
		return err
	}
	if !c.engine.options.Async { // no answer comes before all ranks are here; the barrier's error names a late rank
		if err := group.Barrier(ctx, c.g); err != nil {
			return err
		}
	}
	select {
	case a := <-c.answers:
		c.staleness += float64(a.staleness) / float64(len(c.engine.buckets))
		copy(data, a.params)
		return nil
	case <-ctx.Done():
		return errors.Join(group.Barrier(ctx, c.g), context.Cause(ctx)) // which tells the other ranks
	case <-c.ctx.Done():
		return errors.Join(group.Barrier(c.ctx, c.g), context.Cause(c.ctx))
	}
}

// push sends a bucket's gradients to its server.
func (c *client) push(bucket int, grads []byte) error {
	to := bucket % c.servers()
	if to != c.g.Rank() {
		return c.send(to, message{pushed, int64(bucket), 0}, grads)
	}
	sh := c.shards[bucket]
	room := sh.room()
	if err := room.MutableBytes(func(into []byte) { copy(into, grads) }); err != nil {
		return err
	}
	return c.take(sh, to, room)
}

// Parts implements [engine.Server]: a server writes the parameters and states of its buckets, and the server of the
// first bucket also the counters.
func (c *client) Parts(steps int) (parts []checkpoint.Part, err error) {
	all := c.engine.recipe.State()
	add := func(at int, value *tensors.Tensor) {
		parts = append(parts, checkpoint.Part{Spec: all[at], Value: value})
	}
	for b := range c.engine.buckets {
		sh := c.shards[b]
		if sh == nil {
			continue
		}
		for i, at := range c.engine.places(b) {
			value, err := sh.values[i].LocalClone()
			if err != nil {
				return nil, err
			}
			add(at, value)
		}
		if b == 0 {
			add(len(all)-2, tensors.FromScalar(int32(steps)))
			add(len(all)-1, tensors.FromScalar(int32(sh.updates)))
		}
	}
	return parts, nil
}

// Close implements [engine.Server]. If the rank has failed, it ends this rank's goroutines only.
func (c *client) Close(failed error) error {
	if c.cancel == nil || c.closed {
		return nil
	}
	c.closed = true
	err := failed
	if err == nil { // after this nobody pushes, and all have their answers
		ctx, cancel := c.patient()
		err = group.Barrier(ctx, c.g)
		cancel()
	}
	for other := range c.g.Size() {
		if err == nil && c.talks(other) {
			err = c.send(other, message{closing, 0, 0}, nil)
		}
	}
	if err != nil {
		c.cancel(err)
	}
	c.loops.Wait()
	if failed == nil && err == nil {
		err = context.Cause(c.ctx)
	}
	c.cancel(nil)
	for _, sh := range c.shards {
		err = errors.Join(err, sh.free())
	}
	if failed != nil {
		return nil
	}
	return err
}
