//go:build mpi

package mpi

import (
	"sync"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// lane is calls that run one after another: all collectives of a group, the sends
// to one peer, or the receives from one.
type lane struct {
	mu   sync.Mutex
	last place
}

// place is a call's place in a lane. Its turn comes when before is closed, which is
// nil for the first; the call closes over when it ends.
type place struct {
	seq    uint64 // from 1
	before <-chan struct{}
	over   chan struct{}
}

// ask takes the next place in a lane.
func (l *lane) ask() place {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = place{seq: l.last.seq + 1, before: l.last.over, over: make(chan struct{})}
	return l.last
}

// laneOf is the lane of a call. An invalid call is refused in that of the collectives.
func (g *ranks) laneOf(kind group.Kind, peer int) *lane {
	switch {
	case kind == group.KindSend && peer >= 0 && peer < g.size:
		return &g.sends[peer]
	case kind == group.KindRecv && peer >= 0 && peer < g.size:
		return &g.recvs[peer]
	}
	return &g.collectives
}
