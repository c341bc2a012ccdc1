//go:build mpi

package mpi

// #include "ompi.h"
import "C"

import (
	"math"
	"unsafe"

	_ "github.com/shardbook/shardbook/internal/half" // whose header reduce.c includes
	"github.com/shardbook/shardbook/lib/collective/group"
)

// maxCount is the most elements that one MPI call takes: its counts are C ints.
const maxCount = math.MaxInt32

// inPlace stands for MPI_IN_PLACE, an address that Go's runtime does not suffer.
var inPlace unsafe.Pointer

// collective starts one rank's part in a collective call that moves data and is not
// an all-to-all.
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

// ownPart is whether a rank's small buffer is its own part of the large one.
func ownPart(small, large group.Buffer, t group.Type, rank int) bool {
	return small.Len > 0 && small.Data == unsafe.Add(large.Data, rank*small.Len*t.Size())
}

// scratch is memory that stands for a buffer until the transfer ends well.
func (t *transfer) scratch(b group.Buffer, typ group.Type) unsafe.Pointer {
	temporary := make([]byte, b.Len*typ.Size())
	t.last = func() { copy(unsafe.Slice((*byte)(b.Data), len(temporary)), temporary) }
	return t.pin(group.Buffer{Data: unsafe.Pointer(&temporary[0]), Len: len(temporary)})
}
