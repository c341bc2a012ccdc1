package memest

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/recompute"
)

// Change is a change to a setup, and what it saves.
type Change struct {
	What  string `json:"what"` // as in "ZeRO stage 3"
	Cost  string `json:"cost"` // what it costs in return
	Setup Setup  `json:"-"`
	// Bytes is the memory of the device that needs most, after the change.
	Bytes int64 `json:"bytes_per_device"`
	Fits  bool  `json:"fits"` // it is within the budget
}

// Advise tries single changes to a setup and returns those that save memory, that which saves most first. The
// sequences of a step stay what they are, and so does the number of devices but for the change that says so. An invalid
// setup is an error.
func Advise(s Setup, budget int64) ([]Change, error) {
	now, err := Estimate(s)
	if err != nil {
		return nil, err
	}
	s = s.whole()
	var found []Change
	try := func(what, cost string, change func(*Setup)) {
		changed := s
		change(&changed)
		l, err := Estimate(changed)
		if err != nil || l.BytesPerDevice() >= now.BytesPerDevice() {
			return // it does not apply here, or does not help
		}
		found = append(found, Change{what, cost, changed, l.BytesPerDevice(), l.BytesPerDevice() <= budget})
	}
	for stage := s.Layout.ZeRO + 1; stage <= 3 && s.ranks() > 1; stage++ {
		cost := "no more traffic"
		if stage == 3 {
			cost = "half as much traffic again"
		}
		try(fmt.Sprintf("ZeRO stage %d", stage), cost, func(s *Setup) { s.Layout.ZeRO = stage })
	}
	if !s.Flash {
		try("flash attention", "none", func(s *Setup) { s.Flash = true })
	}
	if s.Recompute == recompute.None {
		for _, p := range []struct {
			policy recompute.Policy
			cost   string
		}{
			{recompute.Selective, "a little time"},
			{recompute.Recomputing(recompute.Norm1, recompute.Norm2, recompute.Act), "a little time"},
			{recompute.SubLayers, "one more forward pass"},
			{recompute.Block, "one more forward pass"},
		} {
			try(fmt.Sprintf("recompute %s", p.policy), p.cost, func(s *Setup) { s.Recompute = p.policy })
		}
	}
	if s.Batch%2 == 0 {
		try(fmt.Sprintf("micro-batches of %d", s.Batch/2), "more micro-batches a step",
			func(s *Setup) { s.Batch, s.Microbatches = s.Batch/2, 2*s.Microbatches })
	}
	if s.Layout.Tensor > 1 && !s.Layout.Seq {
		try("sequence parallelism", "none", func(s *Setup) { s.Layout.Seq = true })
	}
	for _, by := range []int{2, 4, 8} {
		if s.Layout.Data%by != 0 {
			continue
		}
		fewer := func(s *Setup) { s.Layout.Data, s.Microbatches = s.Layout.Data/by, by*s.Microbatches }
		try(fmt.Sprintf("tensor parallelism %d, data %d", by*s.Layout.Tensor, s.Layout.Data/by),
			"two all-reduces a block and pass",
			func(s *Setup) { s.Layout.Tensor *= by; fewer(s) })
		try(fmt.Sprintf("%d pipeline stages, data %d", by*s.Layout.Pipeline, s.Layout.Data/by), "a bubble",
			func(s *Setup) { s.Layout.Pipeline *= by; fewer(s) })
	}
	if s.ranks() == 1 {
		try(fmt.Sprintf("%d devices and ZeRO stage 3", 8*s.Layout.Devices()), "8 times the devices",
			func(s *Setup) { s.Layout.Data, s.Layout.ZeRO = 8, 3 })
	}
	if !s.OffloadActivations {
		try("activations in host memory", "traffic over the host link", func(s *Setup) { s.OffloadActivations = true })
	}
	if !s.OffloadOptimizer {
		try("optimizer states in host memory", "traffic over the host link", func(s *Setup) { s.OffloadOptimizer = true })
	}
	try("8-bit Adam", "a rounding of the states", func(s *Setup) { s.Optimizer = optim.Adam8bit(1e-3) })
	slices.SortStableFunc(found, func(a, b Change) int { return cmp.Compare(a.Bytes, b.Bytes) })
	return found, nil
}

// Combine makes one change after another, each time that which saves most, until the setup fits the budget or nothing
// saves more. It returns the changes in order, the last with the setup and the memory of all together; none for a setup
// that fits already. An invalid setup is an error.
func Combine(s Setup, budget int64) ([]Change, error) {
	now, err := Estimate(s)
	if err != nil || now.BytesPerDevice() <= budget {
		return nil, err
	}
	s = s.whole()
	var made []Change
	for {
		changes, err := Advise(s, budget)
		if err != nil || len(changes) == 0 {
			return made, err
		}
		// Rather with the devices that there are; and of changes that are enough, that which saves least costs least.
		more := func(c Change) bool { return c.Setup.Layout.Devices() > s.Layout.Devices() }
		here := slices.DeleteFunc(slices.Clone(changes), more)
		if len(here) == 0 {
			here = changes
		}
		best := here[0]
		for _, c := range here {
			if c.Fits {
				best = c
			}
		}
		made, s = append(made, best), best.Setup
		if best.Fits {
			return made, nil
		}
	}
}
