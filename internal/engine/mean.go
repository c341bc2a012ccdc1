package engine

import (
	"slices"

	"github.com/shardbook/shardbook/lib/step"
)

// replicas returns the number of shards of a batch, and which of them this rank has: one for each rank with the first
// block, and the other ranks of its pipeline.
func (o *own) replicas() (n, at int) { return replicaOf(o.Plans[0], o.rank) }

func replicaOf(p *step.Plan, of int) (n, at int) {
	for rank, list := range p.Ranks {
		first := func(op step.Op) bool { return op.Kind == step.Forward && op.Block == 0 && op.Micro == 0 }
		if !slices.ContainsFunc(list, first) {
			continue
		}
		if rank <= of {
			at = n
		}
		n++
	}
	return n, at
}

// summands returns the number of gradients that are summed for the mean over a batch: of micro-batches, ranks and
// devices with different examples or tokens. It is 1 if losses are sums.
func (o *own) summands() int {
	if o.Sum {
		return 1
	}
	n := o.Plans[0].Every * o.size(o.averaged()...)
	if o.reducesReplicas() {
		copies, _ := o.replicas()
		n *= copies
	}
	return n
}

// averaged returns the mesh axes along which devices have different examples or tokens.
func (c *common) averaged() []string { return append([]string{c.Mesh[0].Name}, c.Shards.Tokens...) }

// sumsDiffer reports whether a rank's devices accumulate different gradients, of different examples or tokens.
func (c *common) sumsDiffer() bool { return c.size(c.averaged()...) > 1 }

// reducesReplicas reports whether gradients are reduced over replicas; in local SGD they are not.
func (o *own) reducesReplicas() bool {
	p := o.Plans[0]
	_, at := o.replicas()
	for _, u := range o.units {
		for _, name := range u.Reduce {
			a, _ := p.Axis(name)
			for _, other := range a.Group(o.rank) {
				if _, of := replicaOf(p, other); of != at {
					return true
				}
			}
		}
	}
	return false
}

// local reports whether replicas update with their own gradients: local SGD.
func (o *own) local() bool {
	copies, _ := o.replicas()
	return copies > 1 && !o.reducesReplicas()
}

// early reports whether gradients are divided by summands before they are summed: sums in half types might overflow
// where the mean does not.
func (o *own) scalesEarly() bool { return o.policy.Reduce.Size() < 4 }
