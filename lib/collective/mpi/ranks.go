//go:build mpi

package mpi

// #include "ompi.h"
import "C"

import (
	"context"
	"io"
	"time"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// ranks is one process's view of a group: an Open MPI communicator.
type ranks struct {
	name        string // of a sub-group; "" for the world
	comm        C.MPI_Comm
	rank, size  int
	post        *post
	collectives lane
	sends       []lane // by peer
	recvs       []lane
	world       *world
}

// newRanks makes a group of a communicator that nothing else uses.
func newRanks(name string, comm C.MPI_Comm, w *world) (*ranks, error) {
	var rank, size C.int
	if code := C.shardbook_prepare(comm, &rank, &size); code != C.MPI_SUCCESS {
		return nil, mpiError(code)
	}
	g := &ranks{
		name: name, comm: comm, rank: int(rank), size: int(size), world: w,
		sends: make([]lane, size), recvs: make([]lane, size),
	}
	var err error
	g.post, err = newPost(name, comm, g.rank, g.size)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.groups = append(w.groups, g) // to close it with the world
	return g, err
}

func (g *ranks) Rank() int { return g.rank }

func (g *ranks) Size() int { return g.size }

func (g *ranks) Do(ctx context.Context, call group.Call) error {
	p := g.laneOf(call.Kind, call.Peer).ask()
	return g.do(ctx, p, call, g.perform)
}

func (g *ranks) Start(ctx context.Context, call group.Call) *group.Pending {
	p := g.laneOf(call.Kind, call.Peer).ask()
	return group.NewPending(func() error { return g.do(ctx, p, call, g.perform) })
}

// Dump writes the last operations of this process: every process keeps its own.
func (g *ranks) Dump(w io.Writer) error {
	return group.WriteRecords(w, g.world.rank, g.world.recorder.Records())
}

// task is a call whose turn has come.
type task struct {
	group.Call
	seq uint64
	bound
}

// do makes a call when its turn in the lane has come, and records it.
func (g *ranks) do(ctx context.Context, p place, call group.Call, perform func(*task) error) error {
	if ctx == nil {
		ctx = context.Background()
	}
	defer close(p.over)
	if p.before != nil {
		select {
		case <-p.before:
		case <-ctx.Done():
			// The group fails, so the calls before this one end soon.
			g.giveUpInQueue(ctx, call.Kind, p.seq)
			<-p.before
		}
	}
	t := &task{Call: call, seq: p.seq, bound: bounded(ctx, g.world.timeout)}
	number := g.world.recorder.Begin(g.name, t.seq, call, t.started)
	err := g.world.whileOpen(func() error {
		if err := g.post.poll(t); err != nil {
			return g.blame(t, err, "", nil)
		}
		if err := ctx.Err(); err != nil {
			return g.blame(t, err, "", nil)
		}
		return perform(t)
	})
	g.world.recorder.End(number, err)
	return err
}

// giveUpInQueue fails the group because the context of a call ended that waits for an earlier one of its lane. At a
// deadline, the rank that the earlier collective waits for is at fault.
func (g *ranks) giveUpInQueue(ctx context.Context, kind group.Kind, seq uint64) {
	err := ended(ctx)
	if missing := g.post.notCalled(); ctx.Err() == context.DeadlineExceeded && len(missing) > 0 {
		for _, r := range g.world.recorder.Records() {
			if r.Ended.IsZero() && r.Group == g.name && r.Call.Kind != group.KindSend && r.Call.Kind != group.KindRecv {
				t := &task{Call: r.Call, seq: r.Seq,
					bound: bound{ctx: ctx, started: r.Started, until: time.Now()}}
				g.blame(t, context.DeadlineExceeded, "arrive", missing)
				return
			}
		}
	}
	g.post.fail(&group.Failure{Rank: g.rank, Kind: kind, Seq: seq, Reason: "gave up: " + err.Error(), Err: err}, 0)
}

// perform makes any call but a split.
func (g *ranks) perform(t *task) error {
	if err := t.check(g.rank, g.size); err != nil {
		return g.fail(t, g.rank, "made an invalid call: "+err.Error(), err)
	}
	switch t.Kind {
	case group.KindSend:
		return g.send(t)
	case group.KindRecv:
		return g.recv(t)
	}
	if err := g.meet(t); err != nil {
		return err
	}
	if t.Kind == group.KindBarrier || t.Elements() == 0 && t.InCounts == nil {
		return nil
	}
	return g.move(t)
}
