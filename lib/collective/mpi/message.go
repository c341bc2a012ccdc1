//go:build mpi

package mpi

import (
	"fmt"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// send announces a message and sends it. Open MPI buffers a short one, so that the send
// may complete before the receive is posted.
func (g *ranks) send(t *task) error {
	due := fmt.Sprintf("receive from rank %d", g.rank)
	if g.post.hasLeft(t.Peer) {
		return g.blame(t, leftError(t.Peer), due, nil)
	}
	mine := announce(&t.Call, t.seq, t.Peer)
	x := &transfer{comm: g.comm}
	x.send(mine.bytes(), group.Uint8, t.Peer, tagNotice)
	t.pieces(func(call group.Call) { x.send(call.In, call.Type, call.Peer, tagData) })
	err := t.await(spinMeeting, func() (bool, error) {
		if ok, err := x.done(); ok || err != nil {
			return ok, err
		}
		failure := g.post.poll(t)
		if g.post.hasLeft(t.Peer) {
			if ok, err := x.done(); ok || err != nil {
				return ok, err
			}
			return false, leftError(t.Peer)
		}
		return g.post.receives(t.Peer, t.seq), failure
	})
	return g.deliver(t, x, err, due)
}

// recv waits for the announcement of a message, and receives it if it is what the call expects.
func (g *ranks) recv(t *task) error {
	due := fmt.Sprintf("send to rank %d", g.rank)
	var theirs head
	err := t.await(spinMeeting, func() (bool, error) {
		failure := g.post.poll(t)
		if ok, err := g.post.nextSend(t.Peer, &theirs); ok || err != nil {
			return ok, err
		}
		return false, failure
	})
	if err != nil {
		return g.blame(t, err, due, []int{t.Peer})
	}
	if theirs.typ != t.Type || theirs.elements != int64(t.Out.Len) {
		reason := fmt.Sprintf("receives %d %v where rank %d sends %d %v", t.Out.Len, t.Type, t.Peer, theirs.elements,
			theirs.typ)
		return g.fail(t, g.rank, reason, nil)
	}
	x := &transfer{comm: g.comm}
	if t.Out.Len*t.Type.Size() > shortMessage {
		mine := &head{what: aReceive, seq: t.seq}
		x.send(mine.bytes(), group.Uint8, t.Peer, tagNotice)
	}
	t.pieces(func(call group.Call) { x.recv(call.Out, call.Type, call.Peer, tagData) })
	return g.deliver(t, x, nil, due)
}

// shortMessage is the size in bytes up to which messages are buffered. The sender of a
// longer one is told when its receive is posted.
const shortMessage = 4096

// deliver waits until a message is sent or received, unless an error came before.
func (g *ranks) deliver(t *task, x *transfer, err error, due string) error {
	if err == nil {
		err = t.await(spinMoving, func() (bool, error) {
			if ok, err := x.done(); ok || err != nil {
				return ok, err
			}
			return false, g.post.poll(t)
		})
	}
	x.end(err)
	if err != nil {
		return g.blame(t, err, due, []int{t.Peer})
	}
	return nil
}

// receives reports whether a rank has posted the receive of message seq.
func (p *post) receives(rank int, seq uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.peers[rank].received >= seq
}

// nextSend takes the next message that a rank has announced, if there is one.
func (p *post) nextSend(from int, h *head) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	peer := &p.peers[from]
	if len(peer.sends) == 0 {
		if peer.left {
			return false, leftError(from)
		}
		return false, nil
	}
	*h, peer.sends = peer.sends[0], peer.sends[1:]
	return true, nil
}

func (p *post) hasLeft(rank int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.peers[rank].left
}
