package step

import (
	"fmt"
	"slices"
)

// Costs say how long operations take and what they keep, in any units. A list has a value for each block, or one that
// stands for all. The zero value is [Equal].
type Costs struct {
	Forward    []float64 // where empty 1
	InputGrad  []float64 // where empty 1
	WeightGrad []float64 // where empty 1
	Backward   []float64 // where empty InputGrad + WeightGrad
	Recompute  []float64 // where empty Forward
	Update     []float64 // of each unit; where empty 0
	// Link is the time from when one rank sends, or comes to a Gather or Reduce, to when another has what it gives.
	// Several messages may be under way at a time. Where nil it is 0.
	Link func(from, to int) float64
	// Transfer is the time that a Gather, Reduce, Store, Fetch or HostUpdate takes, or a Send besides Link. In a stream
	// there is one of these at a time. Where nil it is 0.
	Transfer func(op Op) float64

	// Activation is what a block saves for the backward pass of a micro-batch, where empty 1.
	Activation []float64
	// Kept is the share of it, from 0 to 1, that is still needed between InputGrad and WeightGrad, where empty 1.
	Kept []float64
}

// Equal are the costs at which the papers count: 1 for a forward pass and each half of a backward pass, which makes 2
// for a whole one, messages and updates that take no time, and 1 for what a block saves of a micro-batch.
func Equal() Costs {
	one := []float64{1}
	return Costs{Forward: one, InputGrad: one, WeightGrad: one, Activation: one, Kept: one}
}

// mostCost bounds a cost, so that no sum of them is infinite.
const mostCost = 1e100

// Check returns an error for lists of another length than the number of blocks or units, and for numbers that are no
// costs.
func (c Costs) Check(blocks, units int) error {
	for _, f := range c.lists() {
		most, count := mostCost, blocks
		if f.name == "Kept" {
			most = 1
		} else if f.name == "Update" {
			count = units
		}
		if n := len(*f.list); n > 1 && n != count {
			return fmt.Errorf("step: Costs.%s has %d values for %d: give one for each, or one for all", f.name, n, count)
		}
		for _, v := range *f.list {
			if !(v >= 0 && v <= most) {
				return fmt.Errorf("step: Costs.%s has the value %v: give one from 0 to %g", f.name, v, most)
			}
		}
	}
	return nil
}

type costList struct {
	name string
	list *[]float64
}

func (c *Costs) lists() []costList {
	return []costList{{"Forward", &c.Forward}, {"InputGrad", &c.InputGrad}, {"WeightGrad", &c.WeightGrad},
		{"Backward", &c.Backward}, {"Recompute", &c.Recompute}, {"Update", &c.Update}, {"Activation", &c.Activation},
		{"Kept", &c.Kept}}
}

// of is a block's or unit's value of a list.
func of[T any](list []T, at int, otherwise T) T {
	switch len(list) {
	case 0:
		return otherwise
	case 1:
		return list[0]
	}
	return list[at]
}

// Took is the time that an operation takes; 0 for the update of all units, which is for the caller to add up.
func (c Costs) Took(op Op) float64 {
	switch op.Kind {
	case Forward:
		return of(c.Forward, op.Block, 1)
	case Recompute:
		return of(c.Recompute, op.Block, of(c.Forward, op.Block, 1))
	case InputGrad:
		return of(c.InputGrad, op.Block, 1)
	case WeightGrad:
		return of(c.WeightGrad, op.Block, 1)
	case Backward:
		return of(c.Backward, op.Block, of(c.InputGrad, op.Block, 1)+of(c.WeightGrad, op.Block, 1))
	case Update:
		if op.Unit < 0 {
			return 0
		}
		return of(c.Update, op.Unit, 0)
	case Gather, Reduce, Store, Fetch, HostUpdate, Send:
		if c.Transfer != nil {
			return c.Transfer(op)
		}
	}
	return 0
}

// Saved is what a block saves of a micro-batch, and what is left of that after InputGrad.
func (c Costs) Saved(block int) (saved, kept float64) {
	saved = of(c.Activation, block, 1)
	return saved, saved * of(c.Kept, block, 1)
}

// Between is the time of a message, which takes none within a rank. A time that is none is an error.
func (c Costs) Between(from, to int) (float64, error) {
	if c.Link == nil || from == to {
		return 0, nil
	}
	if v := c.Link(from, to); v >= 0 && v <= mostCost {
		return v, nil
	} else {
		return 0, fmt.Errorf("step: Costs.Link(%d, %d) is %v: let it be from 0 to %g", from, to, v, mostCost)
	}
}

// Spread returns the costs of blocks that are cut into n chunks each, counted in units that are as much smaller: each
// chunk has the numbers of its whole block, and messages take n times as long. What is then counted is to be divided
// by n, as [Plan.SimulateShares] does it.
func (c Costs) Spread(n int) Costs {
	for _, l := range c.lists() {
		var each []float64
		for _, v := range *l.list {
			each = append(each, slices.Repeat([]float64{v}, n)...)
		}
		if len(*l.list) > 1 {
			*l.list = each
		}
	}
	if link := c.Link; link != nil {
		c.Link = func(from, to int) float64 { return link(from, to) * float64(n) }
	}
	return c
}
