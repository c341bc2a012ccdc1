package zero

import (
	"context"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/trace"
)

// gather puts the ranks' shards of a unit together.
func (r *Rank) gather(ctx context.Context, own, whole *tensors.Tensor) error {
	return r.among(between(ctx, r.shard, group.KindAllGather, own, whole))
}

// among says which ranks an error of the ranks that share a copy of the state is about, where there are several copies.
func (r *Rank) among(err error) error {
	if r.replicas == nil {
		return err
	}
	return rank.Within(rank.Numbers(r.world.Rank()-r.shard.Rank(), 1, r.shards), err)
}

// between makes an operation of a group on arrays of the device, a sum where it reduces.
func between(ctx context.Context, g group.Group, operation group.Kind, in, out *tensors.Tensor) error {
	kind, from, err := rank.Memory(in)
	if err != nil {
		return err
	}
	_, to, err := rank.Memory(out)
	if err != nil {
		return err
	}
	return g.Do(ctx, group.Call{Kind: operation, Type: kind, Op: group.Sum, In: from, Out: to})
}

// guest is a unit that is, or will be, gathered for a stretch of a pass.
type guest struct {
	stay
	whole *tensors.Tensor
	there <-chan struct{} // closed when it has been gathered
}

// invite begins to gather what is needed up to a position, in stage 3. Elsewhere all is there.
func (p *rankPass) invite(position int) error {
	if p.engine.options.Stage < 3 {
		return nil
	}
	for ; len(p.coming) > 0 && p.coming[0].first <= position; p.coming = p.coming[1:] {
		g := &guest{stay: p.coming[0]}
		u := p.units[g.unit]
		own := p.held.weights[g.unit]
		var err error
		if g.whole, err = p.borrow(own.DType(), p.shards, u.size); err != nil {
			return err
		}
		p.count(g.whole.Shape().ByteSize())
		g.there = p.stream.Add(func() error {
			defer p.span(trace.Gather, u.name)()
			return p.gather(p.ctx, own, g.whole)
		})
		p.guests = append(p.guests, g)
	}
	return nil
}

// needed returns the whole units of a position's block, once they are there.
func (p *rankPass) needed(position int) (units []any) {
	for _, u := range p.uses[blockAt(position, len(p.blocks))] {
		if p.engine.options.Stage < 3 {
			units = append(units, p.held.weights[u])
			continue
		}
		for _, g := range p.guests {
			if g.unit != u || g.first > position {
				continue
			}
			select {
			case <-g.there:
			default:
				end := p.span(trace.Wait, p.units[u].name)
				<-g.there
				end()
			}
			units = append(units, g.whole)
			break
		}
	}
	return units
}

// dismiss frees what is not needed behind a position.
func (p *rankPass) dismiss(position int) {
	var stay []*guest
	for _, g := range p.guests {
		if g.last > position {
			stay = append(stay, g)
			continue
		}
		p.count(-g.whole.Shape().ByteSize())
		p.pool.GiveBack(g.whole)
	}
	p.guests = stay
}

// count records how many bytes of parameters are gathered.
func (p *rankPass) count(bytes int64) {
	p.gathered += bytes
	p.engine.options.Trace.Count(p.world.Rank(), "gathered parameters", p.gathered)
}
