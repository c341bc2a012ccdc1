package memest

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/recompute"
)

// Change is a change to a setup that saves memory.
type Change struct {
	What  string `json:"what"` // for example "ZeRO stage 3"
	Cost  string `json:"cost"` // what the change costs, for example time or traffic
	Setup Setup  `json:"-"`    // the changed setup
	// Bytes is the memory of the device that needs the most, after the change.
	Bytes int64 `json:"bytes_per_device"`
	Fits  bool  `json:"fits"` // Bytes is within the budget
}

// Advise tries single changes to a setup and returns those that save memory, the largest saving first. The budget is
// the memory of a device, in bytes. No change alters the number of sequences in a step; only one, which says so, the
// number of devices. It returns an error for an invalid setup.
func Advise(s Setup, budget int64) ([]Change, error) {
	now, err := Estimate(s)
	if err != nil {
		return nil, err
	}
	s = s.withDefaults()
	var found []Change
	try := func(what, cost string, change func(*Setup)) {
		changed := s
		change(&changed)
		l, err := Estimate(changed)
		if err != nil || l.BytesPerDevice() >= now.BytesPerDevice() {
			return // it is not possible here, or does not help
		}
		found = append(found, Change{what, cost, changed, l.BytesPerDevice(), l.BytesPerDevice() <= budget})
	}
	for stage := s.Parallelism.ZeRO + 1; stage <= 3 && s.ranks() > 1; stage++ {
		cost := "no more traffic"
		if stage == 3 {
			cost = "1.5 times the traffic"
		}
		try(fmt.Sprintf("ZeRO stage %d", stage), cost, func(s *Setup) { s.Parallelism.ZeRO = stage })
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
	if s.Parallelism.Tensor > 1 && !s.Parallelism.Seq {
		try("sequence parallelism", "none", func(s *Setup) { s.Parallelism.Seq = true })
	}
	for n := 2 * s.Parallelism.Expert; n <= s.Model.Experts; n *= 2 {
		try(fmt.Sprintf("expert parallelism %d", n), "two all-to-alls a block and pass",
			func(s *Setup) { s.Parallelism.Expert = n })
	}
	for _, by := range []int{2, 4, 8} {
		if s.Parallelism.Data%by != 0 {
			continue
		}
		fewer := func(s *Setup) { s.Parallelism.Data, s.Microbatches = s.Parallelism.Data/by, by*s.Microbatches }
		try(fmt.Sprintf("tensor parallelism %d, data %d", by*s.Parallelism.Tensor, s.Parallelism.Data/by),
			"two all-reduces a block and pass", func(s *Setup) { s.Parallelism.Tensor *= by; fewer(s) })
		try(fmt.Sprintf("%d pipeline stages, data %d", by*s.Parallelism.Pipeline, s.Parallelism.Data/by), "a bubble",
			func(s *Setup) { s.Parallelism.Pipeline *= by; fewer(s) })
	}
	if s.ranks() == 1 {
		try(fmt.Sprintf("%d devices and ZeRO stage 3", 8*s.Parallelism.Devices()), "8 times the devices",
			func(s *Setup) { s.Parallelism.Data, s.Parallelism.ZeRO = 8, 3 })
	}
	if !s.OffloadActivations {
		try("activations in host memory", "traffic over the host link", func(s *Setup) { s.OffloadActivations = true })
	}
	if !s.OffloadOptimizer {
		try("optimizer states in host memory", "traffic over the host link",
			func(s *Setup) { s.OffloadOptimizer = true })
	}
	try("8-bit Adam", "a rounding of the states", func(s *Setup) { s.Optimizer = optim.Adam8bit(1e-3) })
	slices.SortStableFunc(found, func(a, b Change) int { return cmp.Compare(a.Bytes, b.Bytes) })
	return found, nil
}

// Combine makes one change of [Advise] after another until the setup fits the budget (bytes on each device) or no
// change helps. Each time it takes the smallest saving that fits, else the largest. It returns the changes in order;
// the last has the final setup and its memory. It returns none for a setup that already fits, and an error for an
// invalid one.
func Combine(s Setup, budget int64) ([]Change, error) {
	now, err := Estimate(s)
	if err != nil || now.BytesPerDevice() <= budget {
		return nil, err
	}
	s = s.withDefaults()
	var made []Change
	for {
		changes, err := Advise(s, budget)
		if err != nil || len(changes) == 0 {
			return made, err
		}
		// Prefer changes that need no more devices. Of those that fit, the smallest saving should cost the least.
		more := func(c Change) bool { return c.Setup.Parallelism.Devices() > s.Parallelism.Devices() }
		if same := slices.DeleteFunc(slices.Clone(changes), more); len(same) > 0 {
			changes = same
		}
		best := changes[0]
		for _, c := range changes {
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
