//go:build mpi

package mpi

import (
	"time"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// pulse sends heartbeats to the other ranks while data moves. At the deadline they
// distinguish ranks that have failed from ranks that wait for them.
type pulse struct {
	of    *ranks
	sign  *head
	every time.Duration
	next  time.Time
}

func (g *ranks) newPulse(b bound) *pulse {
	every := max(b.until.Sub(b.started)/10, 50*time.Millisecond)
	return &pulse{of: g, sign: &head{what: aSign}, every: every, next: time.Now().Add(every)}
}

// beat sends a heartbeat if it is time for one, as part of the transfer.
func (p *pulse) beat(x *transfer) {
	now := time.Now()
	if now.Before(p.next) {
		return
	}
	p.next = now.Add(p.every)
	for to := range p.of.size {
		if to != p.of.rank {
			x.send(p.sign.bytes(), group.Uint8, to, tagNotice)
		}
	}
}

// silent are the other ranks that have sent nothing for d; if there are none, the one that
// has sent nothing for the longest time.
func (p *post) silent(d time.Duration) []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	var ranks []int
	longest := -1
	for rank := range p.peers {
		if rank == p.rank {
			continue
		}
		heard := p.peers[rank].heard
		if time.Since(heard) > d {
			ranks = append(ranks, rank)
		}
		if longest < 0 || heard.Before(p.peers[longest].heard) {
			longest = rank
		}
	}
	if ranks == nil && longest >= 0 {
		ranks = []int{longest}
	}
	return ranks
}
