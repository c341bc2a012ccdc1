//go:build mpi

package mpi

import (
	"unsafe"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// allToAll starts one rank's part in an all-to-all: a message to and from each rank,
// itself too, as MPI's own does. That one loses step where a rank has nothing to
// give and nothing to get (Open MPI 4.1.4).
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
