package paramserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// Servers and their clients send each other messages of three words, with data if the first word says so. Two ranks, at
// least one of which has a server, may do so in both directions, so each of them listens to the other all the time.
const (
	pushed   = iota // bucket, 0; its gradients follow
	answered        // bucket, staleness of the gradients; its new parameters follow
	closing         // 0, 0; the rank sends no more
)

type message = [3]int64

// servers returns the number of ranks with a server. Bucket b belongs to rank b modulo servers.
func (c *client) servers() int {
	if n := c.engine.options.Servers; n > 0 {
		return n
	}
	return c.g.Size()
}

// talks reports whether the rank exchanges messages with another: one of them has a server.
func (c *client) talks(other int) bool {
	return other != c.g.Rank() && min(other, c.g.Rank()) < c.servers()
}

// listen starts to receive from the other ranks.
func (c *client) listen() {
	for other := range c.g.Size() {
		if c.talks(other) {
			c.loops.Go(func() { c.note(c.receive(other)) })
		}
	}
}

// note cancels everything after an error.
func (c *client) note(err error) {
	if err != nil {
		c.cancel(err)
	}
}

// send sends a message and its data to another rank.
func (c *client) send(to int, m message, data []byte) error {
	c.sends[to] <- struct{}{}
	defer func() { <-c.sends[to] }()
	err := group.Send(c.ctx, c.g, m[:], to)
	if err == nil && len(data) > 0 {
		err = group.Send(c.ctx, c.g, data, to)
	}
	c.note(err) // before another message follows a half one
	return err
}

// patient returns a context for a wait without limit: a late rank is noticed, and named, by a barrier of all ranks.
func (c *client) patient() (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.ctx, 1000*time.Hour)
}

// receive handles the messages of another rank until it closes.
func (c *client) receive(from int) error {
	ctx, cancel := c.patient()
	defer cancel()
	for {
		var m message
		if err := group.Recv(ctx, c.g, m[:], from); err != nil {
			return err
		}
		switch m[0] {
		case pushed:
			sh := c.shards[int(m[1])]
			if sh == nil {
				return fmt.Errorf("rank %d pushed bucket %d, which is not served here", from, m[1])
			}
			room := sh.room()
			var own error
			err := room.MutableBytes(func(into []byte) { own = group.Recv(ctx, c.g, into, from) })
			if err = errors.Join(err, own); err == nil {
				err = c.take(sh, from, room)
			}
			if err != nil {
				return err
			}
		case answered:
			a := answer{int(m[1]), m[2], make([]byte, c.engine.buckets[m[1]].Bytes())}
			if err := group.Recv(ctx, c.g, a.params, from); err != nil {
				return err
			}
			c.answers <- a
		case closing:
			return nil
		}
	}
}

// take gives a worker's gradients to their shard, and sends answers to the workers that wait for them. A worker pushes
// no other bucket before its answer.
func (c *client) take(sh *shard, worker int, grads *tensors.Tensor) error {
	answers, err := sh.take(worker, grads)
	for w, a := range answers {
		if w == c.g.Rank() {
			c.answers <- a
			continue
		}
		c.loops.Go(func() { // in the background: the receiver may be sending to this rank first
			_ = c.send(w, message{answered, int64(a.bucket), a.staleness}, a.params) // which notes an error
		})
	}
	return err
}
