package paramserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// Ranks with parameters to serve, and their clients, send each other messages: three words, and the data that the first
// of them announces. Any pair of ranks of which one has a server may send some, both ways, so that each rank listens to
// each of these others from beginning to end.
const (
	pushed   = iota // bucket, 0: its gradients follow
	answered        // bucket, how stale the gradients were: its new parameters follow
	closing         // 0, 0: the rank sends no more
)

type message = [3]int64

// servers is on how many ranks there is a server. Bucket b is that of rank b modulo servers.
func (c *client) servers() int {
	if n := c.engine.options.Servers; n > 0 {
		return n
	}
	return c.g.Size()
}

// talks says whether the rank and another have anything to say to each other: one of them has a server.
func (c *client) talks(other int) bool {
	return other != c.g.Rank() && min(other, c.g.Rank()) < c.servers()
}

// listen starts to receive what the others send.
func (c *client) listen() {
	for other := range c.g.Size() {
		if c.talks(other) {
			c.loops.Go(func() { c.note(c.receive(other)) })
		}
	}
}

// note ends everything with an error.
func (c *client) note(err error) {
	if err != nil {
		c.cancel(err)
	}
}

// send sends another rank a message, and the data that it announces.
func (c *client) send(to int, m message, data []byte) error {
	c.sends[to] <- struct{}{}
	defer func() { <-c.sends[to] }()
	err := group.Send(c.ctx, c.g, m[:], to)
	if err == nil && len(data) > 0 {
		err = group.Send(c.ctx, c.g, data, to)
	}
	c.note(err) // now: no other message may follow a half one
	return err
}

// patient is for a wait of as long as it takes: a rank that is late is noticed, and named, where all wait for it.
func (c *client) patient() (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.ctx, 1000*time.Hour)
}

// receive takes what another rank sends, until it closes.
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

// take gives a worker's gradients to their shard, and the answers to those who wait for them: one for each worker, which
// pushes no other bucket before it has it.
func (c *client) take(sh *shard, worker int, grads *tensors.Tensor) error {
	answers, err := sh.take(worker, grads)
	for w, a := range answers {
		if w == c.g.Rank() {
			c.answers <- a
			continue
		}
		c.loops.Go(func() { // who waits for the message to be received may have one to send to this rank
			_ = c.send(w, message{answered, int64(a.bucket), a.staleness}, a.params) // which notes an error
		})
	}
	return err
}
