package main

import (
	"context"
	"sync"

	"github.com/shardbook/shardbook/internal/mpijob"
	"github.com/shardbook/shardbook/lib/collective/group"
)

// gate makes all ranks stop after the same step.
type gate struct {
	ctx context.Context // ends when the run is interrupted
	run context.Context // that of the ranks' calls
	mpi *mpijob.Job

	// Without MPI: a step that one rank has begun, all ranks do.
	mu    sync.Mutex
	begun int // steps

	// With MPI: after each step the processes agree on whether to stop. A rank begins a step only after they have
	// agreed on the one lag steps before it.
	lag    int
	agreed chan bool
}

// asyncLag is the lag of ranks that do not wait for each other. The slowest must do this many steps within the timeout.
const asyncLag = 8

func newGate(ctx context.Context, r *ranks) *gate {
	return &gate{ctx: ctx, run: r.ctx, mpi: r.mpi, begun: r.steps, lag: r.lag, agreed: make(chan bool, ahead)}
}

// pass reports whether a rank may begin a step, counted from 0. It waits until that is known.
func (g *gate) pass(step int) bool {
	if g.mpi != nil {
		select {
		case more := <-g.agreed:
			return more
		case <-g.run.Done():
			return false
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if step == g.begun && g.ctx.Err() == nil {
		g.begun++
	}
	return step < g.begun
}

// open agrees on whether to begin at all. It is a collective call of the processes.
func (g *gate) open() error {
	_, err := g.agree(nil)
	for range g.lag - 1 {
		g.agreed <- true
	}
	return err
}

// agree sends the ranks' reports on a step to all processes, and makes them agree on whether to stop. It is a
// collective call of the processes; without MPI it returns the reports that it is given.
func (g *gate) agree(own []metrics) (all []metrics, err error) {
	if g.mpi == nil {
		return own, nil
	}
	const numbers = 3 // of each rank
	mine := [numbers]float64{}
	if len(own) > 0 {
		mine[0], mine[1] = own[0].Loss, own[0].Staleness
	}
	if g.ctx.Err() != nil {
		mine[2] = 1
	}
	told := make([]float64, numbers*g.mpi.Size())
	if err := group.AllGather(g.run, g.mpi.Talk, mine[:], told); err != nil {
		return nil, err
	}
	stop := false
	for ; len(told) > 0; told = told[numbers:] {
		stop = stop || told[2] > 0
		if len(own) > 0 {
			m := own[0]
			m.Loss, m.Staleness = told[0], told[1]
			all = append(all, m)
		}
	}
	select {
	case g.agreed <- !stop:
	case <-g.run.Done():
	}
	return all, nil
}
