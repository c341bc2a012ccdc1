//go:build mpi

package mpi

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// notice is a control message between ranks: a call before its data moves, or the end of a group. It is sent as bytes,
// so all processes must be of one program and one kind of machine.
type notice struct {
	head
	text [maxReason]byte // of a failure
}

// maxReason is the most bytes that a failure's reason can have.
const maxReason = 480

type head struct {
	what     what
	kind     group.Kind
	typ      group.Type
	op       group.ReduceOp
	uneven   bool
	cause    uint8 // of a failure
	rank     int32 // of a failure: the rank at fault
	peer     int32
	textLen  int32
	seq      uint64
	reached  uint64 // of a failure: see post
	elements int64

	// Of an all-to-all with uneven parts: the elements from the sender of the notice to its receiver, and back.
	give, take int64
}

// bytes is the memory of a head, or of a notice, as MPI sends it.
func (h *head) bytes() group.Buffer {
	return group.Buffer{Data: unsafe.Pointer(h), Len: int(unsafe.Sizeof(*h))}
}

func (n *notice) bytes() group.Buffer {
	return group.Buffer{Data: unsafe.Pointer(n), Len: int(unsafe.Sizeof(*n))}
}

// what a notice is about.
type what uint8

const (
	aCall    what = iota // the sender takes part in a collective call
	aSend                // the sender has a message for the receiver
	aReceive             // the sender has posted the receive of a message
	aSign                // a heartbeat, see pulse
	aFailure
	aLeave // the sender has closed the group
)

// announce is the head that announces a call to a peer.
func announce(call *group.Call, seq uint64, peer int) head {
	h := head{what: aCall, kind: call.Kind, typ: call.Type, seq: seq, elements: int64(call.Elements())}
	switch call.Kind {
	case group.KindSend:
		h.what = aSend
	case group.KindReduce, group.KindBroadcast, group.KindGather, group.KindScatter:
		h.peer = int32(call.Peer)
	case group.KindBarrier:
		h.typ, h.elements = 0, 0
	}
	switch call.Kind {
	case group.KindReduce, group.KindAllReduce, group.KindReduceScatter:
		h.op = call.Op
	}
	if call.InCounts != nil {
		h.uneven, h.elements = true, 0
		h.give, h.take = int64(call.InCounts[peer]), int64(call.OutCounts[peer])
	}
	return h
}

// agrees reports whether two ranks make the same call.
func (h head) agrees(o head) bool {
	return h.kind == o.kind && h.typ == o.typ && h.op == o.op && h.peer == o.peer &&
		h.elements == o.elements && h.uneven == o.uneven
}

// call is the call that was announced, without buffers.
func (h head) call() group.Call {
	buffer := group.Buffer{Len: int(h.elements)}
	return group.Call{Kind: h.kind, Type: h.typ, Op: h.op, Peer: int(h.peer), In: buffer, Out: buffer}
}

// String describes the call.
func (h head) String() string {
	if h.uneven {
		return fmt.Sprintf("%v (uneven parts of %v)", h.kind, h.typ)
	}
	call := h.call()
	return call.String()
}

// causes are the causes of failures that other ranks are told of, for errors.Is; a notice has the index.
var causes = [...]error{nil, context.DeadlineExceeded, context.Canceled}

// failureNotice is the notice of a failure.
func failureNotice(f *group.Failure) *notice {
	n := &notice{head: head{what: aFailure, kind: f.Kind, seq: f.Seq, rank: int32(f.Rank)}}
	n.textLen = int32(copy(n.text[:], f.Reason))
	for c, err := range causes {
		if err != nil && errors.Is(f.Err, err) {
			n.cause = uint8(c)
		}
	}
	return n
}

// failure is the failure of a notice.
func (n *notice) failure() *group.Failure {
	return &group.Failure{
		Rank: int(n.rank), Kind: n.kind, Seq: n.seq, Err: causes[n.cause],
		Reason: string(n.text[:n.textLen]),
	}
}
