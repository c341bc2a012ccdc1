//go:build mpi

package mpi

// #include "ompi.h"
import "C"

import (
	"context"
	"sync"
	"time"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// The tags of a communicator's messages. What MPI itself sends in a collective call does not mix with them.
const (
	tagData   = iota
	tagPart   // of an all-to-all
	tagNotice // see post
)

// grace is the time in which a rank that ends a group tries to notify the others.
const grace = 200 * time.Millisecond

// post exchanges notices with the other ranks of a group. A receive from each of them is always posted. Every call that
// waits calls poll, so that it gets another rank's failure at once.
type post struct {
	name       string // of the group, for failures
	rank, size int

	mu       sync.Mutex
	incoming transfer // request r receives the next notice of rank r
	letters  []notice // its memory
	which    []C.int
	peers    []peer
	failure  error  // a *group.Failure, or errClosed
	reached  uint64 // the collective in which it showed, 0 if it is not of one
}

// peer is what a rank knows about another one.
type peer struct {
	calls []head // collective calls that it announced, oldest first, not yet compared
	sends []head // its messages to this rank, as calls
	last  head   // the last of either

	received uint64    // the last long message from this rank that it came to receive
	heard    time.Time // when anything came from it
	left     bool      // it has closed the group
}

// newPost starts to listen.
func newPost(name string, comm C.MPI_Comm, rank, size int) (*post, error) {
	p := &post{
		name: name,
		rank: rank, size: size, letters: make([]notice, size), which: make([]C.int, size), peers: make([]peer, size),
	}
	p.incoming.comm = comm
	p.incoming.pins.Pin(&p.letters[0])
	for from := range size {
		p.incoming.requests = append(p.incoming.requests, C.shardbook_no_request())
		p.listen(from)
	}
	return p, p.incoming.err
}

func (p *post) listen(from int) {
	if from == p.rank {
		return
	}
	letter := p.letters[from].bytes()
	code := C.MPI_Irecv(letter.Data, C.int(letter.Len), C.shardbook_type(C.int(group.Uint8)),
		C.int(from), tagNotice, p.incoming.comm, &p.incoming.requests[from])
	if code != C.MPI_SUCCESS {
		p.incoming.err = mpiError(code)
	}
}

// poll processes the notices that have been received. It returns the group's failure, if
// that concerns the call, or MPI's error.
func (p *post) poll(t *task) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		count := C.shardbook_some_done(C.int(p.size), &p.incoming.requests[0], &p.which[0])
		if count < 0 {
			return mpiError(-count)
		}
		if count == 0 {
			break
		}
		for _, from := range p.which[:count] {
			p.take(&p.peers[from], &p.letters[from])
			p.listen(int(from))
		}
	}
	if p.failure != nil && !p.survives(t) {
		return p.failure
	}
	return p.incoming.err
}

// survives reports whether the call can succeed though the group has failed: the rank
// that failed was in a later call, so all ranks are in this one.
func (p *post) survives(t *task) bool {
	return t.seq < p.reached && t.Kind != group.KindSend && t.Kind != group.KindRecv
}

func (p *post) take(from *peer, n *notice) {
	from.heard = time.Now()
	switch n.what {
	case aCall:
		from.calls, from.last = append(from.calls, n.head), n.head
	case aSend:
		from.sends, from.last = append(from.sends, n.head), n.head
	case aReceive:
		from.received = n.seq
	case aLeave:
		from.left = true
	case aFailure:
		f := n.failure()
		f.Group = p.name
		p.set(f, n.reached)
	}
}

// set makes f the group's failure if there is none.
func (p *post) set(f error, reached uint64) bool {
	if p.failure != nil {
		return false
	}
	p.failure, p.reached = f, reached
	return true
}

// reason is the group's failure, nil if there is none.
func (p *post) reason() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failure
}

// end makes f the group's failure, unless there is one, and notifies the other ranks. It returns the group's failure.
func (p *post) end(f error, n *notice) error {
	p.mu.Lock()
	first := p.set(f, n.reached)
	f = p.failure
	p.mu.Unlock()
	if first {
		p.tell(n)
	}
	return f
}

// fail ends the group for all ranks. This rank is in the collective call reached; 0 means in another call.
func (p *post) fail(f *group.Failure, reached uint64) error {
	f.Reason = f.Reason[:min(len(f.Reason), maxReason)] // for all ranks alike
	f.Group = p.name
	n := failureNotice(f)
	n.reached = reached
	return p.end(f, n)
}

// leave ends the group for this rank alone.
func (p *post) leave() { p.end(errClosed, &notice{head: head{what: aLeave}}) }

// tell sends a notice to all other ranks.
func (p *post) tell(n *notice) {
	t := transfer{comm: p.incoming.comm}
	for to := range p.size {
		if to != p.rank {
			t.send(n.bytes(), group.Uint8, to, tagNotice)
		}
	}
	t.end(bounded(context.Background(), grace).await(spinMeeting, t.done))
}

// close stops listening. Nothing may be polling.
func (p *post) close() {
	for i := range p.incoming.requests {
		C.shardbook_cancel(&p.incoming.requests[i])
	}
	p.incoming.pins.Unpin()
}
