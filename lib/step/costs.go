package step

import "fmt"

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

	parts int // how many blocks each value of a list is for: see Spread
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
	for _, l := range []struct {
		name  string
		list  []float64
		count int
		most  float64
	}{{"Forward", c.Forward, blocks, mostCost}, {"InputGrad", c.InputGrad, blocks, mostCost},
		{"WeightGrad", c.WeightGrad, blocks, mostCost}, {"Backward", c.Backward, blocks, mostCost},
		{"Recompute", c.Recompute, blocks, mostCost}, {"Update", c.Update, units, mostCost},
		{"Activation", c.Activation, blocks, mostCost}, {"Kept", c.Kept, blocks, 1}} {
		if err := checkList("Costs."+l.name, l.list, l.count/max(1, c.parts), l.most); err != nil {
			return err
		}
	}
	return nil
}

// checkList looks at a list with a value for each block or unit, or one for all.
func checkList[T int64 | float64](name string, list []T, count int, most T) error {
	if n := len(list); n > 1 && n != count {
		return fmt.Errorf("step: %s has %d values for %d: give one for each, or one for all", name, n, count)
	}
	for _, v := range list {
		if !(v >= 0 && v <= most) {
			return fmt.Errorf("step: %s has the value %v: give one from 0 to %v", name, v, most)
		}
	}
	return nil
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

func (c *Costs) of(list []float64, at int, otherwise float64) float64 {
	return of(list, at/max(1, c.parts), otherwise)
}

// Time is the time that an operation takes; 0 for the update of all units, which is for the caller to add up.
func (c Costs) Time(op Op) float64 {
	switch op.Kind {
	case Forward:
		return c.of(c.Forward, op.Block, 1)
	case Recompute:
		return c.of(c.Recompute, op.Block, c.of(c.Forward, op.Block, 1))
	case InputGrad:
		return c.of(c.InputGrad, op.Block, 1)
	case WeightGrad:
		return c.of(c.WeightGrad, op.Block, 1)
	case Backward:
		return c.of(c.Backward, op.Block, c.of(c.InputGrad, op.Block, 1)+c.of(c.WeightGrad, op.Block, 1))
	case Update:
		if op.Unit < 0 {
			return 0
		}
		return c.of(c.Update, op.Unit, 0)
	case Gather, Reduce, Store, Fetch, HostUpdate, Send:
		if c.Transfer != nil {
			return c.Transfer(op)
		}
	}
	return 0
}

// Saved is what a block saves of a micro-batch, and what is left of that after InputGrad.
func (c Costs) Saved(block int) (saved, kept float64) {
	saved = c.of(c.Activation, block, 1)
	return saved, saved * c.of(c.Kept, block, 1)
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
	c.parts = n * max(1, c.parts)
	if link := c.Link; link != nil {
		c.Link = func(from, to int) float64 { return link(from, to) * float64(n) }
	}
	return c
}
