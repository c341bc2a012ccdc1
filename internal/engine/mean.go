package engine

import (
	"slices"

	"github.com/shardbook/shardbook/lib/step"
)

// copies is by how many ranks the rows of a batch are divided, and which of them this one is: all ranks that have the
// first block, and the other ranks of their pipelines with them.
func (o *own) copies() (n, at int) { return copiesOf(o.Plans[0], o.rank) }

func copiesOf(p *step.Plan, of int) (n, at int) {
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

// summands is how many gradients are added up to the mean over a batch: of micro-batches, and of ranks and devices with
// other rows or tokens, where these are added up. Where losses are sums it is 1.
func (o *own) summands() int {
	if o.Sum {
		return 1
	}
	n := o.Plans[0].Every * o.size(o.averaged()...)
	if o.reducesCopies() {
		copies, _ := o.copies()
		n *= copies
	}
	return n
}

// averaged are the mesh axes along which devices have other rows or tokens.
func (c *common) averaged() []string { return append([]string{c.Mesh[0].Name}, c.Shares.Tokens...) }

// sumsDiffer says whether devices of a rank have other sums of gradients, of other rows or tokens.
func (c *common) sumsDiffer() bool { return c.size(c.averaged()...) > 1 }

// reducesCopies says whether gradients are added up over ranks with other rows; in local SGD they are not.
func (o *own) reducesCopies() bool {
	p := o.Plans[0]
	_, at := o.copies()
	for _, u := range o.units {
		for _, name := range u.Reduce {
			a, _ := p.Axis(name)
			for _, other := range a.Group(o.rank) {
				if _, of := copiesOf(p, other); of != at {
					return true
				}
			}
		}
	}
	return false
}

// local says whether ranks with other rows update with gradients of their own: local SGD, between its averages.
func (o *own) local() bool {
	copies, _ := o.copies()
	return copies > 1 && !o.reducesCopies()
}

// early says whether gradients are divided by the summands before they are added up: sums of half types might overflow
// where their mean does not.
func (o *own) early() bool { return o.policy.Reduce.Size() < 4 }
