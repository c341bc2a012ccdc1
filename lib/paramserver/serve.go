package paramserver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/collective/group"
)

// Ranks with parameters to serve, and their clients, send each other messages: three words, and the data that the first of
// them announces. Any pair of ranks of which one has a server may send some, both ways, so that each rank listens to
// each of these others from beginning to end.
const (
	pushed   = iota // bucket, 0: its gradients follow
	answered        // bucket, how stale the gradients were: its new parameters follow
	leaving         // 0, 0: the rank pushes no more
	closing         // 0, 0: the rank sends no more
)

type message = [3]int64

// client is a rank's side of parameter servers, with the server that it has itself.
type client struct {
	rank    *Rank
	ctx     context.Context
	cancel  context.CancelCauseFunc
	shards  map[int]*shard // that it serves, by bucket
	asked   int            // buckets that were pushed and not pulled
	answers chan answer    // to this rank
	out     []chan answer  // to others, by rank
	loops   sync.WaitGroup
	left    sync.WaitGroup // the workers of this server
}

// serve starts the rank's server and its client at a state that lies on its device. It takes the state.
func (r *Rank) serve(ctx context.Context, state []*tensors.Tensor) error {
	err := r.engine.prepare()
	if r.client != nil && err == nil { // all ranks are here, and none has anything to push
		err = r.client.close(nil)
	}
	if err != nil {
		return errors.Join(err, rank.Free(state...))
	}
	buckets := len(r.engine.buckets)
	c := &client{rank: r, shards: map[int]*shard{}, answers: make(chan answer, buckets)}
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	r.client = c
	for b := range r.engine.buckets {
		if b%r.servers() == r.g.Rank() && err == nil {
			c.shards[b], err = newShard(r, b, state)
		}
	}
	if err == nil {
		c.listen(buckets)
	}
	old, n := r.state, len(r.engine.tree)
	r.state = state[:n:n]
	return errors.Join(err, rank.Free(old...), rank.Free(state[n:]...))
}

// listen starts what goes on between this rank and the others.
func (c *client) listen(buckets int) {
	g, servers := c.rank.g, c.rank.servers()
	c.out = make([]chan answer, g.Size())
	for other := range g.Size() {
		if other == g.Rank() || other >= servers && g.Rank() >= servers {
			continue
		}
		if g.Rank() < servers {
			c.left.Add(1)
			c.out[other] = make(chan answer, buckets)
			c.loops.Go(func() { c.note(c.answer(other)) })
		}
		c.loops.Go(func() { c.note(c.receive(other)) })
	}
}

// note ends everything with an error.
func (c *client) note(err error) {
	if err != nil {
		c.cancel(err)
	}
}

// receive takes what another rank sends, until it closes. It waits for as long as it takes: a rank that is late is
// noticed, and named, where all wait for it.
func (c *client) receive(from int) error {
	ctx, cancel := context.WithTimeout(c.ctx, 1000*time.Hour)
	defer cancel()
	g, here := c.rank.g, true
	defer func() {
		if here && c.out[from] != nil {
			c.left.Done()
		}
	}()
	for {
		var m message
		if err := group.Recv(ctx, g, m[:], from); err != nil {
			return err
		}
		switch m[0] {
		case pushed:
			sh := c.shards[int(m[1])]
			if sh == nil {
				return fmt.Errorf("rank %d pushed bucket %d, which is not served here", from, m[1])
			}
			into, kind, data, err := sh.room()
			if err != nil {
				return err
			}
			if err := g.Do(ctx, group.Call{Kind: group.KindRecv, Type: kind, Peer: from, Out: data}); err != nil {
				return errors.Join(err, rank.Free(into))
			}
			if err := c.take(sh, from, into); err != nil {
				return err
			}
		case answered:
			a := answer{int(m[1]), m[2], make([]byte, c.rank.engine.own(int(m[1])).Bytes())}
			if err := group.Recv(ctx, g, a.params, from); err != nil {
				return err
			}
			c.answers <- a
		case leaving:
			here = false
			c.left.Done()
		case closing:
			return nil
		}
	}
}

// take gives a worker's gradients to their shard, and the answers to those who wait for them.
func (c *client) take(sh *shard, worker int, grads *tensors.Tensor) error {
	answers, err := sh.take(worker, grads)
	for w, a := range answers {
		if w == c.rank.g.Rank() {
			c.answers <- a
		} else {
			c.out[w] <- a
		}
	}
	return err
}

// answer sends another rank what is for it.
func (c *client) answer(to int) error {
	for {
		select {
		case a, more := <-c.out[to]:
			if !more {
				return nil
			}
			if err := c.send(to, answered, a.bucket, a.staleness, group.SendCall(a.params, to)); err != nil {
				return err
			}
		case <-c.ctx.Done():
			return context.Cause(c.ctx)
		}
	}
}
