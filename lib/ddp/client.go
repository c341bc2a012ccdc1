package ddp

import (
	"context"
	"errors"
	"unsafe"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/trace"
)

// client is a rank's side of parameter servers, and the server that it has itself.
type client struct {
	rank   *Rank
	server *server // nil where the rank has none
	cancel context.CancelFunc
	asked  []int // by server: buckets that were pushed and not pulled
}

// serve starts the rank's server, and its client, at a state that lies on its device. It takes the state.
func (r *Rank) serve(ctx context.Context, state []*tensors.Tensor) error {
	if err := r.engine.prepare(noShape, noShape); err != nil {
		return errors.Join(err, free(state))
	}
	if r.client != nil { // all ranks are here, and none has anything to push
		if err := r.client.close(nil); err != nil {
			return errors.Join(err, free(state))
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	c := &client{rank: r, cancel: cancel, asked: make([]int, r.servers())}
	if r.g.Rank() < r.servers() {
		var err error
		if c.server, err = newServer(ctx, r, state); err != nil {
			cancel()
			return errors.Join(err, free(state))
		}
		c.server.run()
	}
	old, n := r.state, len(r.engine.tree)
	r.client, r.state = c, state[:n:n]
	return errors.Join(free(old), free(state[n:]))
}

// push gives a bucket's gradients to its server.
func (c *client) push(ctx context.Context, grads Gradients) error {
	to, g := grads.Index%c.rank.servers(), c.rank.counted()
	c.asked[to]++
	if to == c.rank.g.Rank() {
		sh := c.server.shards[grads.Index]
		into, kind, data, err := sh.room()
		if err != nil {
			return err
		}
		copy(bytesOf(kind, data), bytesOf(grads.Type, grads.Data))
		c.server.take(sh, to, into)
		return nil
	}
	if err := group.Send(ctx, g, []int64{int64(grads.Index)}, to); err != nil {
		return err
	}
	return g.Do(ctx, group.Call{Kind: group.KindSend, Type: grads.Type, Peer: to, In: grads.Data})
}

// pull takes the new parameters of all buckets that were pushed, and returns how stale their gradients were on average.
func (c *client) pull(ctx context.Context) (staleness float64, err error) {
	defer c.rank.span(trace.Wait, "parameters")()
	buckets := c.rank.engine.buckets
	for s := range c.asked {
		for ; c.asked[s] > 0; c.asked[s]-- {
			a, err := c.answer(ctx, s)
			if err != nil {
				return 0, err
			}
			staleness += float64(a.staleness) / float64(len(buckets))
			for _, place := range buckets[a.bucket].Places {
				kind, data, err := buffer(c.rank.state[place])
				if err != nil {
					return 0, err
				}
				a.params = a.params[copy(bytesOf(kind, data), a.params):]
			}
		}
	}
	if c.server != nil {
		return staleness, c.server.failed()
	}
	return staleness, nil
}

// answer is the next of a server.
func (c *client) answer(ctx context.Context, from int) (a answer, err error) {
	g := c.rank.g
	if from == g.Rank() {
		select {
		case a := <-c.server.answers[from]:
			return a, a.err
		case <-ctx.Done():
			return a, context.Cause(ctx)
		}
	}
	word := []int64{0, 0}
	if err := group.Recv(ctx, g, word, from); err != nil {
		return a, err
	}
	a.bucket, a.staleness = int(word[0]), word[1]
	a.params = make([]byte, c.rank.engine.own(a.bucket).Bytes())
	return a, group.Recv(ctx, g, a.params, from)
}

// close tells the servers that nothing more comes from this rank, and waits until the others have told its own. After an
// error it only ends what goes on.
func (c *client) close(lost error) error {
	defer c.cancel()
	var err error
	if lost == nil {
		for s := range c.rank.servers() {
			if s != c.rank.g.Rank() && err == nil {
				err = group.Send(context.Background(), c.rank.g, []int64{leaving}, s)
			}
		}
	}
	if lost != nil || err != nil {
		c.cancel()
	}
	if c.server != nil {
		c.server.loops.Wait()
		if lost == nil {
			err = errors.Join(err, c.server.failed())
		}
		for _, sh := range c.server.shards {
			err = errors.Join(err, free(sh.values), free(sh.waiting))
		}
	}
	return err
}

// collect returns the whole state, from the servers that have its parts. It is a collective call.
func (r *Rank) collect(ctx context.Context) (state []*tensors.Tensor, err error) {
	if err := group.Barrier(ctx, r.g); err != nil { // then no server has anything to do
		return nil, err
	}
	var updates int32
	state, err = r.zeros()
	for b := range r.engine.buckets {
		if err != nil {
			return nil, err
		}
		sh, owner := &shard{rank: r, bucket: b}, b%r.servers()
		values := make([]*tensors.Tensor, 0, len(sh.places()))
		for _, at := range sh.places() {
			values = append(values, state[at])
		}
		number := []int64{0}
		if owner == r.g.Rank() {
			own := r.client.server.shards[b]
			for i, v := range own.values {
				kind, from, e := buffer(v)
				_, to, e2 := buffer(values[i])
				if err = errors.Join(err, e, e2); err == nil {
					copy(bytesOf(kind, to), bytesOf(kind, from))
				}
			}
			number[0] = own.updates
		}
		err = errors.Join(err, r.broadcast(ctx, values, owner), group.Broadcast(ctx, r.g, number, owner))
		updates = int32(number[0])
	}
	for i, n := range []int32{int32(r.steps), updates} {
		at := len(state) - counters + i
		counter, e := r.engine.backend.Put(n, r.device)
		err = errors.Join(err, e, free(state[at:at+1]))
		state[at] = counter
	}
	return state, err
}

// zeros is a state of zeros on the rank's device.
func (r *Rank) zeros() (state []*tensors.Tensor, err error) {
	for _, s := range r.engine.recipe.State() {
		v, err := r.engine.backend.Put(tensors.FromShape(s.Shape), r.device)
		if err != nil {
			return nil, errors.Join(err, free(state))
		}
		state = append(state, v)
	}
	return state, nil
}

// bytesOf is a buffer's memory.
func bytesOf(kind group.Type, b group.Buffer) []byte {
	return unsafe.Slice((*byte)(b.Data), b.Len*kind.Size())
}
