package zero

import (
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/precision"
)

// pass is the forward and the backward pass of a micro-batch, block by block, in one graph. In stage 3 the parameters of a block are
// gathered for each of the two, and are not needed between.
//
// Where two things could be done in any order the compiler would choose the fastest, and hold all gathered parameters, or
// whole gradients, at once. So what is to be gathered waits for what arrives at a block not far before, and the gradient
// that goes on waits until that of the parameters has been reduced.
type pass struct {
	*inOne
	weights, scaling          []*graph.Node
	inputs, targets, key, row *graph.Node

	loss  *graph.Node
	grads []*graph.Node // by unit, in the type that gradients are summed in: whole in stage 1, else shards
}

func (p *pass) run() {
	last := len(p.model.Blocks) - 1
	operands, kept := make([]chain.Operands, last+1), make([][]*graph.Node, last+1)
	arrivals := make([]*graph.Node, 0, 2*last+1) // at each block, there and back
	x := p.inputs
	for i := range last + 1 {
		arrivals = append(arrivals, x)
		operands[i] = chain.Operands{X: graph.Identity(graph.StopGradient(x))} // each block has a gradient of its own
		if p.model.Noisy {
			operands[i].Key, operands[i].Row = p.key, p.row
		}
		if i < last {
			operands[i].Weights = p.gathered(i, arrivals)
			x, kept[i] = p.passes.Forward(i, operands[i])
		}
	}
	partial := make([]*graph.Node, len(p.units)) // sums over the blocks behind
	p.grads = make([]*graph.Node, len(p.units))
	above := p.targets
	for i := last; i >= 0; i-- {
		if i < last {
			arrivals = append(arrivals, above)
		}
		operands[i].Weights = p.gathered(i, arrivals)
		g := p.passes.Backward(i, operands[i], kept[i], above, p.scaling)
		if above = g.X; i == last {
			p.loss = g.Loss
		}
		if len(p.uses[i]) == 0 {
			continue
		}
		rows := p.rows(i, precision.Cast(g.Weights, p.policy.Reduce))
		for _, u := range p.uses[i] {
			if partial[u] = plus(partial[u], rows[u]); p.units[u].blocks[0] < i {
				continue // a block before has a part in it
			}
			p.grads[u] = partial[u]
			if p.options.Stage == 1 {
				continue
			}
			if p.grads[u] = p.scatter(partial[u]); above != nil {
				above = graph.SchedulingBarrier(above, p.grads[u])
			}
		}
	}
}

// gathered returns a block's parameters. arrivals are what has arrived at the blocks so far, this one the last.
func (p *pass) gathered(block int, arrivals []*graph.Node) []*graph.Node {
	units := map[int]*graph.Node{}
	for _, u := range p.uses[block] {
		if units[u] = p.weights[u]; p.options.Stage == 3 {
			from := arrivals[max(0, len(arrivals)-1-p.options.Prefetch)]
			units[u] = p.gather(graph.SchedulingBarrier(p.weights[u], from))
		}
	}
	return p.whole(block, units)
}
