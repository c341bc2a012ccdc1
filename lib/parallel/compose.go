package parallel

import (
	"fmt"
	"slices"
	"strings"

	"github.com/shardbook/shardbook/internal/engine"
	"github.com/shardbook/shardbook/lib/expert"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/recompute"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/zero"
	"github.com/shardbook/shardbook/lib/zero/residual"
)

// Names, in the trainer's Traffic, of the communication between ranks.
const (
	BetweenStages = engine.BetweenStages // activations and their gradients, to neighbouring stages
	BetweenRanks  = "replica"            // gradients of replicas, and parameters where ZeRO shards over them
	BetweenShards = "shard"              // the same, within the group of replicas that shards one copy of the state
	BetweenCopies = "copy"               // the same of experts, between the replicas that have the same ones
)

// compose returns the layout's step plans, which are repeated in turn: it transforms the plan of one device, whose
// units have these parameters, by one technique after another. It also returns the parameters of the units of these
// plans, and the number of blocks of each stage.
func (l Layout) compose(r train.Recipe, p *step.Plan, of [][]int, shards params.Shards) (plans []*step.Plan,
	members [][]int, cut []int, err error) {
	var experts []int // units
	if l.Expert > 1 {
		p, of, experts = expert.Apart(p, of, func(at int) bool {
			return shards.Cuts[at] != nil && slices.Contains(shards.Cuts[at].Along, Expert)
		})
	}
	var inside []string // axes of a rank's devices
	for u := range p.Units {
		axes, n := []string{train.Axis}, l.shards()
		switch own := l.expertDevices(); {
		case own > 1 && slices.Contains(experts, u):
			n /= own
		case own > 1:
			axes = append(axes, Expert)
		}
		axis := strings.Join(append(axes, shards.Tokens...), "+")
		if n == 1 {
			continue
		}
		if p.Units[u].Reduce = []string{axis}; !slices.Contains(inside, axis) {
			inside = append(inside, axis)
			p.Inside(axis, n)
		}
	}
	order, err := l.schedule()
	if err != nil {
		return nil, nil, nil, err
	}
	if cut = l.Cut; cut == nil {
		if cut, err = pipeline.Even(len(p.Blocks), len(order.Blocks)); err != nil {
			return nil, nil, nil, err
		}
	}
	if p, err = pipeline.Spread(p, order, cut); err != nil {
		return nil, nil, nil, err
	}
	if l.Every > 1 && slices.ContainsFunc(p.Axes, func(a step.Axis) bool { return len(a.Groups) > 0 }) {
		return nil, nil, nil, fmt.Errorf("parallel: Layout.Every is %d, and ranks of a pipeline have parameters in "+
			"common, whose gradients all replicas would add up: leave Every out, or have one stage use them", l.Every)
	}
	switch {
	case l.Recompute:
		p = recompute.Stages(p)
	case l.Partition:
		p.Inside(Tensor, l.Tensor)
		p = residual.Partition(recompute.Blocks(p), Tensor)
	}
	along, pending := inside, 0
	if l.shards() == 1 {
		along, pending = []string{BetweenRanks, BetweenCopies}, 1+l.Prefetch
	}
	if l.Shards > 1 {
		along, p = []string{BetweenShards}, p.Replicate(l.Shards, BetweenShards)
	}
	p = p.Replicate(l.copies()/max(1, l.Shards), BetweenRanks)
	if n := l.expertRanks(); n > 1 {
		p = expert.Spread(p, experts, BetweenRanks, Expert, BetweenCopies, n)
	}
	if l.ZeRO > 0 && l.shards()*l.copies() > 1 && l.Shards != 1 { // else each replica has a copy
		p = zero.Shard(p, l.ZeRO, l.Prefetch, pending, along...)
	}
	if l.RingRanks {
		p.Axes = append(p.Axes, step.Axis{Name: Ring, Size: l.Ring, Groups: ringsOf(len(p.Ranks), l.Ring, l.Pipe)})
	}
	plans, members = l.gradients().Write(p, of, r.Model.Params().As(r.Policy().Reduce), BetweenRanks)
	for i := range plans {
		plans[i] = l.Offload.Into(plans[i], r)
	}
	return plans, members, cut, nil
}

// ringsOf returns the ranks of each ring: those of neighbouring copies and the same stage.
func ringsOf(ranks, ring, pipe int) (groups [][]int) {
	for first := 0; first < ranks; first += ring * pipe {
		for stage := range pipe {
			var group []int
			for i := range ring {
				group = append(group, first+i*pipe+stage)
			}
			groups = append(groups, group)
		}
	}
	return groups
}
