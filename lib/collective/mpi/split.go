//go:build mpi

package mpi

// #include "ompi.h"
import "C"

import (
	"context"
	"fmt"
	"math"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// Split implements [group.Group]. MPI's split blocks, so it is called when all ranks have
// announced the call, on a thread that is abandoned if it does not return in time.
func (g *ranks) Split(ctx context.Context, color, key int) (group.Group, error) {
	var part *ranks
	err := g.do(ctx, g.collectives.ask(), group.Call{Kind: group.KindSplit}, func(t *task) (err error) {
		if color > math.MaxInt32 || int(int32(key)) != key {
			err := fmt.Errorf("color %d and key %d: Open MPI has 32 bits for each", color, key)
			return g.fail(t, g.rank, "made an invalid call: "+err.Error(), err)
		}
		if err := g.meet(t); err != nil {
			return err
		}
		part, err = g.split(t, color, key)
		return err
	})
	if err != nil || part == nil {
		return nil, err
	}
	return part, nil
}

func (g *ranks) split(t *task, color, key int) (*ranks, error) {
	type result struct {
		part *ranks
		err  error
	}
	done := make(chan result, 1)
	go func() {
		var comm C.MPI_Comm
		var r result
		if code := C.shardbook_split(g.comm, C.int(color), C.int(key), &comm); code != C.MPI_SUCCESS {
			r.err = mpiError(code)
		} else if color >= 0 {
			r.err = g.world.whileOpen(func() (err error) {
				r.part, err = newRanks(g.partName(t.seq, color), comm, g.world)
				return err
			})
		}
		done <- r
	}()
	var r result
	err := t.await(spinMeeting, func() (bool, error) {
		select {
		case r = <-done:
			return true, r.err
		default:
			return false, g.post.poll(t)
		}
	})
	if err != nil {
		return nil, g.blame(t, err, "", nil)
	}
	return r.part, nil
}

// partName names a sub-group in records.
func (g *ranks) partName(seq uint64, color int) string {
	name := fmt.Sprintf("split #%d color %d", seq, color)
	if g.name != "" {
		name = g.name + ", " + name
	}
	return name
}
