//go:build mpi

package mpi

import (
	"fmt"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// meet announces a collective call to all ranks and waits until all have announced theirs. They must be the same.
func (g *ranks) meet(t *task) error {
	mine := make([]head, g.size)
	x := &transfer{comm: g.comm}
	for to := range mine {
		mine[to] = announce(&t.Call, t.seq, to)
		if to != g.rank {
			x.send(mine[to].bytes(), group.Uint8, to, tagNotice)
		}
	}
	err := t.await(spinMeeting, func() (bool, error) {
		failure := g.post.poll(t)
		if sent, err := x.done(); err != nil {
			return false, err
		} else if !sent {
			return false, failure
		}
		if all, err := g.post.allCalled(); all || err != nil {
			return all, err
		}
		return false, failure
	})
	x.end(err)
	if err != nil {
		return g.blame(t, err, "arrive", g.post.notCalled())
	}
	theirs := g.post.nextCalls()
	theirs[g.rank] = mine[g.rank]
	return g.compare(t, theirs)
}

// compare fails the group if the ranks' calls differ.
func (g *ranks) compare(t *task, calls []head) error {
	if rank, right := group.Odd(calls, head.agrees); rank >= 0 {
		t.Kind = calls[right].kind
		return g.fail(t, rank, fmt.Sprintf("called %v where rank %d called %v", calls[rank], right, calls[right]), nil)
	}
	if t.InCounts == nil {
		return nil
	}
	differ := func(from, to int, has, expects int64) error {
		if has == expects {
			return nil
		}
		return g.fail(t, from, fmt.Sprintf("has %d elements for rank %d, which expects %d", has, to, expects), nil)
	}
	for rank, call := range calls {
		if err := differ(rank, g.rank, call.give, int64(t.OutCounts[rank])); err != nil {
			return err
		}
		if err := differ(g.rank, rank, int64(t.InCounts[rank]), call.take); err != nil {
			return err
		}
	}
	return nil
}

// allCalled is whether every other rank has announced its next call.
func (p *post) allCalled() (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := true
	for rank := range p.peers {
		if rank == p.rank || len(p.peers[rank].calls) > 0 {
			continue
		}
		if p.peers[rank].left {
			return false, leftError(rank)
		}
		all = false
	}
	return all, nil
}

// notCalled is the ranks that have not.
func (p *post) notCalled() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	var missing []int
	for rank := range p.peers {
		if rank != p.rank && len(p.peers[rank].calls) == 0 {
			missing = append(missing, rank)
		}
	}
	return missing
}

// nextCalls takes the next announced call of every other rank.
func (p *post) nextCalls() []head {
	p.mu.Lock()
	defer p.mu.Unlock()
	calls := make([]head, p.size)
	for rank := range p.peers {
		if rank != p.rank {
			calls[rank] = p.peers[rank].calls[0]
			p.peers[rank].calls = p.peers[rank].calls[1:]
		}
	}
	return calls
}

// whereabouts describes a rank's last announced call, for errors.
func (p *post) whereabouts(rank int) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if last := p.peers[rank].last; last.seq > 0 {
		return fmt.Sprintf("its last call here was %v", group.Record{Seq: last.seq, Call: last.call()})
	}
	return "it has made no call here"
}
