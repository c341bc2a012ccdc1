package step

import "fmt"

// Costs are the time that each operation takes and the memory that activations take, in any units. Each list has a
// value per block, or one for all blocks. The zero value means [Equal].
type Costs struct {
	Forward    []float64 // defaults to 1
	InputGrad  []float64 // defaults to 1
	WeightGrad []float64 // defaults to 1
	Backward   []float64 // defaults to InputGrad + WeightGrad
	Recompute  []float64 // defaults to Forward
	Update     []float64 // per unit; defaults to 0
	// Link is the latency between two ranks: of a message, or from the last rank that enters a Gather or Reduce to the
	// result. Several messages may be under way at a time. It defaults to 0.
	Link func(from, to int) float64
	// Transfer is the time that a Gather, Reduce, Store, Fetch or HostUpdate takes, and of a Send the time besides
	// Link. A stream runs one of them at a time. It defaults to 0.
	Transfer func(op Op) float64

	// Activation is the memory that a block saves for the backward pass of a micro-batch; it defaults to 1.
	Activation []float64
	// Kept is the fraction of it, from 0 to 1, that WeightGrad still needs after InputGrad; it defaults to 1.
	Kept []float64

	parts int // chunks that each value of a list is for: see Spread
}

// Equal returns the costs with which the papers count: 1 for Forward, InputGrad and WeightGrad, so 2 for Backward; 0
// for messages and updates; 1 for the activations of a block for a micro-batch.
func Equal() Costs {
	one := []float64{1}
	return Costs{Forward: one, InputGrad: one, WeightGrad: one, Activation: one, Kept: one}
}

// mostCost bounds a cost, so that sums are finite.
const mostCost = 1e100

// Check returns an error for a list whose length is neither 1 nor the number of blocks or units, and for values that
// are negative or not finite.
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

// checkList checks a list with a value per block or unit, or one for all.
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

// of returns the value of a block or unit.
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

// Time returns the time that an operation takes. For the update of all units it is 0: the caller adds up the units.
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

// Saved returns the memory that a block saves for a micro-batch, and what remains of it after InputGrad.
func (c Costs) Saved(block int) (saved, kept float64) {
	saved = c.of(c.Activation, block, 1)
	return saved, saved * c.of(c.Kept, block, 1)
}

// Between returns the latency of a message, 0 within a rank. It returns an error if Link returns a negative or infinite
// time.
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

// Spread returns the costs of a model whose blocks are cut into n chunks each, in units n times smaller: each chunk has
// the numbers of its block, and messages take n times as long. Divide results by n, as [Plan.SimulateShares] does.
func (c Costs) Spread(n int) Costs {
	c.parts = n * max(1, c.parts)
	if link := c.Link; link != nil {
		c.Link = func(from, to int) float64 { return link(from, to) * float64(n) }
	}
	return c
}
