package parallel

import (
	"strings"

	"github.com/shardbook/shardbook/internal/engine"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/recompute"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/zero"
)

// The names, in the trainer's Traffic, of what goes between ranks.
const (
	BetweenStages = engine.BetweenStages // activations and their gradients, to the stages before and behind
	BetweenRanks  = "replica"            // gradients of replicas
)

// compose writes the layout's plan: one technique after another rewrites that of one device.
func (p *Plan) compose(model chain.Model) error {
	l := p.layout
	s, members := engine.Serial(model, l.Microbatches)
	inside := strings.Join(append([]string{train.Axis}, p.spec.Shares.Tokens...), "+")
	if l.PerRank() > 1 {
		s.Inside(inside, l.shards())
		for u := range s.Units {
			s.Units[u].Reduce = []string{inside}
		}
	}
	order, err := l.order()
	if err != nil {
		return err
	}
	if p.layout.Cut == nil {
		if p.layout.Cut, err = pipeline.Even(len(model.Blocks), len(order.Blocks)); err != nil {
			return err
		}
	}
	if s, err = pipeline.Spread(s, order, p.layout.Cut); err != nil {
		return err
	}
	if l.Recompute {
		s = recompute.Stages(s)
	}
	s = s.Copies(l.Replicas, BetweenRanks)
	switch {
	case l.ZeRO > 0 && l.shards() > 1:
		s = zero.Shard(s, l.ZeRO, l.Prefetch, 0, inside)
	case l.ZeRO > 0 && l.Replicas > 1:
		s = zero.Shard(s, l.ZeRO, l.Prefetch, 1+l.Prefetch, BetweenRanks)
	}
	s = ddp.Average(s, true, false)
	p.spec.Plans, p.spec.Members = []*step.Plan{s}, members
	return nil
}
