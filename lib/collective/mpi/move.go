//go:build mpi

package mpi

// #include "ompi.h"
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// pieceCount is the largest number of elements of one MPI call, where a call can be cut. It is a variable for tests.
var pieceCount = 1 << 30

// check is Call.Check, with the limits of Open MPI.
func (t *task) check(rank, size int) error {
	if err := t.Check(rank, size); err != nil {
		return err
	}
	if n := max(t.In.Len, t.Out.Len); n > maxCount && !t.divisible() {
		return fmt.Errorf("%v of %d elements: Open MPI moves at most %d in one call; make several", t.Kind, n, maxCount)
	}
	return nil
}

// divisible reports whether the call may be made piece by piece: it is elementwise.
func (t *task) divisible() bool {
	switch t.Kind {
	case group.KindSend, group.KindRecv, group.KindBroadcast, group.KindReduce, group.KindAllReduce:
		return true
	}
	return false
}

// pieces calls f with the call, cut into pieces that MPI can count.
func (t *task) pieces(f func(group.Call)) {
	if !t.divisible() {
		f(t.Call)
		return
	}
	for at, n := 0, t.Elements(); at == 0 || at < n; at += pieceCount {
		call := t.Call
		call.In, call.Out = t.piece(t.In, at), t.piece(t.Out, at)
		f(call)
	}
}

func (t *task) piece(b group.Buffer, at int) group.Buffer {
	if b.Len == 0 {
		return b
	}
	return group.Buffer{Data: unsafe.Add(b.Data, at*t.Type.Size()), Len: min(b.Len-at, pieceCount)}
}

// move moves the data of a collective call, which all ranks have announced.
func (g *ranks) move(t *task) error {
	x := &transfer{comm: g.comm}
	if t.Kind == group.KindAllToAll {
		x.allToAll(t.Call, g.size)
	} else {
		t.pieces(func(call group.Call) { x.collective(call, g.rank) })
	}
	pulse := g.newPulse(t.bound)
	err := t.await(spinMoving, func() (bool, error) {
		if ok, err := x.done(); ok || err != nil {
			return ok, err
		}
		pulse.beat(x)
		return false, g.post.poll(t)
	})
	x.end(err)
	if err != nil {
		return g.blame(t, err, "go on moving data", g.post.silent(3*pulse.every))
	}
	if t.Op == group.Mean && t.writes(g.rank) {
		C.shardbook_divide(t.Out.Data, C.size_t(t.Out.Len), C.int(t.Type), C.int(g.size))
	}
	return nil
}

// writes reports whether the call is a reduction whose result this rank gets.
func (t *task) writes(rank int) bool {
	switch t.Kind {
	case group.KindReduce:
		return t.Peer == rank
	case group.KindAllReduce, group.KindReduceScatter:
		return true
	}
	return false
}
