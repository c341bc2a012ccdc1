//go:build mpi

package mpi

// #include "ompi.h"
import "C"

import (
	"math"
	"unsafe"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// maxCount is the most elements that one MPI call takes: its counts are C ints.
const maxCount = math.MaxInt32

// inPlace stands for MPI_IN_PLACE, an address that Go's runtime does not allow.
var inPlace unsafe.Pointer

// collective starts one rank's part in a collective call that moves data and is not an all-to-all.
func (t *transfer) collective(call group.Call, rank int) {
	in, out := t.pin(call.In), t.pin(call.Out)
	root := rank == call.Peer
	switch {
	case call.Kind == group.KindAllReduce, call.Kind == group.KindReduce && root:
		in = inPlace
	case call.Kind == group.KindAllGather, call.Kind == group.KindGather && root:
		if ownPart(call.In, call.Out, call.Type, rank) {
			in = inPlace
		}
	case call.Kind == group.KindScatter && root:
		if ownPart(call.Out, call.In, call.Type, rank) {
			out = inPlace
		}
	case call.Kind == group.KindReduceScatter: // in place, MPI's has its input where its output goes
		if ownPart(call.Out, call.In, call.Type, rank) {
			out = t.scratch(call.Out, call.Type)
		}
	}
	nIn, nOut := C.int(call.In.Len), C.int(call.Out.Len)
	typ, op := C.shardbook_type(C.int(call.Type)), C.shardbook_op(C.int(call.Op), C.int(call.Type))
	peer := C.int(call.Peer)
	t.add(func(r *C.MPI_Request) C.int {
		switch call.Kind {
		case group.KindBroadcast:
			return C.MPI_Ibcast(in, nIn, typ, peer, t.comm, r)
		case group.KindReduce:
			return C.shardbook_reduce(in, out, nIn, typ, op, peer, t.comm, r)
		case group.KindAllReduce:
			return C.shardbook_all_reduce(in, out, nIn, typ, op, t.comm, r)
		case group.KindGather:
			return C.shardbook_gather(in, out, nIn, typ, peer, t.comm, r)
		case group.KindAllGather:
			return C.shardbook_all_gather(in, out, nIn, typ, t.comm, r)
		case group.KindScatter:
			return C.shardbook_scatter(in, out, nOut, typ, peer, t.comm, r)
		default:
			return C.MPI_Ireduce_scatter_block(in, out, nOut, typ, op, t.comm, r)
		}
	})
}

// ownPart reports whether a rank's small buffer is its own part of the large one.
func ownPart(small, large group.Buffer, t group.Type, rank int) bool {
	return small.Len > 0 && small.Data == unsafe.Add(large.Data, rank*small.Len*t.Size())
}

// scratch is temporary memory, which is copied to the buffer when the transfer is done.
func (t *transfer) scratch(b group.Buffer, typ group.Type) unsafe.Pointer {
	temporary := make([]byte, b.Len*typ.Size())
	t.last = func() { copy(unsafe.Slice((*byte)(b.Data), len(temporary)), temporary) }
	return t.pin(group.Buffer{Data: unsafe.Pointer(&temporary[0]), Len: len(temporary)})
}

// allToAll starts one rank's part in an all-to-all: a message to and from each rank, itself too, as MPI's own does.
// That one loses step where a rank has nothing to give and nothing to get (Open MPI 4.1.4).
func (t *transfer) allToAll(call group.Call, size int) {
	in, out := call.In, call.Out
	for peer := range size {
		give, take := in.Len/(size-peer), out.Len/(size-peer) // even parts of what is left
		if call.InCounts != nil {
			give, take = call.InCounts[peer], call.OutCounts[peer]
		}
		in = t.part(in, give, call.Type, func(b group.Buffer) { t.send(b, call.Type, peer, tagPart) })
		out = t.part(out, take, call.Type, func(b group.Buffer) { t.recv(b, call.Type, peer, tagPart) })
	}
}

// part calls f with the first n elements of a buffer, and returns the rest.
func (t *transfer) part(b group.Buffer, n int, typ group.Type, f func(group.Buffer)) group.Buffer {
	if n == 0 {
		return b
	}
	f(group.Buffer{Data: b.Data, Len: n})
	if n == b.Len {
		return group.Buffer{} // Go does not like addresses after the end
	}
	return group.Buffer{Data: unsafe.Add(b.Data, n*typ.Size()), Len: b.Len - n}
}
