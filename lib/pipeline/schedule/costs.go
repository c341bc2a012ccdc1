package schedule

import (
	"fmt"
	"math"
)

// Costs say how long passes take and what they keep, in any units. A list has a value for each stage of the model, or one
// that stands for all stages. The zero value is [Equal].
type Costs struct {
	Forward    []float64 // where empty 1
	InputGrad  []float64 // where empty 1
	WeightGrad []float64 // where empty 1
	Backward   []float64 // where empty InputGrad + WeightGrad
	Update     []float64 // where empty 0
	// Link is the time that a message takes from one rank to another, in which both compute on. Where nil it is 0.
	Link func(from, to int) float64

	// Activation is what a stage stashes for the backward pass of a micro-batch, where empty 1.
	Activation []float64
	// Kept is the share of it, from 0 to 1, that is still needed between InputGrad and WeightGrad, where empty 1.
	Kept []float64
}

// Equal are the costs at which the papers count: 1 for a forward pass and each half of a backward pass, which makes 2 for
// a whole one, messages and updates that take no time, and 1 for what a stage stashes of a micro-batch.
func Equal() Costs {
	one := []float64{1}
	return Costs{Forward: one, InputGrad: one, WeightGrad: one, Activation: one, Kept: one}
}

// mostCost bounds a cost, so that no sum of them is infinite.
const mostCost = 1e100

// check returns an error for lists of another length than the number of stages, and for numbers that are no costs.
func (c Costs) check(stages int) error {
	for _, f := range []struct {
		name string
		list []float64
		most float64
	}{
		{"Forward", c.Forward, mostCost}, {"InputGrad", c.InputGrad, mostCost}, {"WeightGrad", c.WeightGrad, mostCost},
		{"Backward", c.Backward, mostCost}, {"Update", c.Update, mostCost},
		{"Activation", c.Activation, mostCost}, {"Kept", c.Kept, 1},
	} {
		if n := len(f.list); n > 1 && n != stages {
			return fmt.Errorf("schedule: Costs.%s has %d values for %d stages: give one for each stage, or one for all",
				f.name, n, stages)
		}
		for _, v := range f.list {
			if !(v >= 0 && v <= f.most) {
				return fmt.Errorf("schedule: Costs.%s has the value %v: give one from 0 to %g", f.name, v, f.most)
			}
		}
	}
	return nil
}

// of is a stage's value of a list.
func of(list []float64, stage int, otherwise float64) float64 {
	switch len(list) {
	case 0:
		return otherwise
	case 1:
		return list[0]
	}
	return list[stage]
}

// Took is the time that an action takes.
func (c Costs) Took(a Action) float64 {
	switch a.Pass {
	case Forward:
		return of(c.Forward, a.Stage, 1)
	case InputGrad:
		return of(c.InputGrad, a.Stage, 1)
	case WeightGrad:
		return of(c.WeightGrad, a.Stage, 1)
	case Backward:
		return of(c.Backward, a.Stage, of(c.InputGrad, a.Stage, 1)+of(c.WeightGrad, a.Stage, 1))
	}
	return of(c.Update, a.Stage, 0)
}

// link is the time of a message, which takes none within a rank.
func (c Costs) link(from, to int) (float64, error) {
	if c.Link == nil || from == to {
		return 0, nil
	}
	if v := c.Link(from, to); v >= 0 && v <= mostCost {
		return v, nil
	} else {
		return 0, fmt.Errorf("schedule: Costs.Link(%d, %d) is %v: let it be from 0 to %g", from, to, v, mostCost)
	}
}

// Spread returns the costs of stages that are cut into so many chunks each, counted in units that are as much smaller: each
// chunk has the numbers of its whole stage, and messages take that many times as long. What is then counted is to be divided
// by chunks, as [Schedule.SimulateShares] does it.
func (c Costs) Spread(chunks int) Costs {
	for _, list := range []*[]float64{&c.Forward, &c.InputGrad, &c.WeightGrad, &c.Backward, &c.Update, &c.Activation, &c.Kept} {
		if len(*list) < 2 {
			continue
		}
		var each []float64
		for _, v := range *list {
			for range chunks {
				each = append(each, v)
			}
		}
		*list = each
	}
	if whole := c.Link; whole != nil {
		c.Link = func(from, to int) float64 { return whole(from, to) * float64(chunks) }
	}
	return c
}

// sameTime tells whether numbers are equal but for rounding.
func sameTime(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(math.Abs(a), math.Abs(b)) }
