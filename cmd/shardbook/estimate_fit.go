package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/recompute"
)

// memory returns the memory of a device in bytes, 0 if no flag gives it, and the device's name, if a flag gives one.
func (r *estimateRequest) memory() (device string, budget int64, err error) {
	switch {
	case r.Device != "" && r.Memory != "":
		return "", 0, fmt.Errorf("--device and --memory both set the memory of a device: leave one of them out")
	case r.Device != "":
		h, err := cost.Accelerator(r.Device)
		if err != nil {
			return "", 0, fmt.Errorf("--device: %w", err)
		}
		return h.Name, h.MemoryBytes, nil
	case r.Memory != "":
		budget, err = r.Memory.Bytes("memory", 1)
	}
	return "", budget, err
}

// chooseRecompute returns a policy with which the run fits the budget, or else full recomputation, also for an invalid
// run, for which the estimate returns the error.
func chooseRecompute(s memest.Setup, budget int64) (recompute.Policy, error) {
	if budget == 0 {
		return "", errors.New("--recompute=auto needs the memory of a device: give --device or --memory")
	}
	s.Recompute = recompute.None
	policy, err := memest.Recompute(s, budget)
	if err != nil {
		return recompute.Block, nil
	}
	return cmp.Or(policy, "none"), nil
}

// fits compares the total with the budget, or without one with the memory of all accelerators.
func (e *estimate) fits(device string, budget int64) {
	if budget > 0 {
		e.Fits = []fit{{device, budget, e.Total <= budget}}
		return
	}
	for _, h := range cost.Accelerators() {
		e.Fits = append(e.Fits, fit{h.Name, h.MemoryBytes, e.Total <= h.MemoryBytes})
	}
}

// advise lists changes that save memory; a budget of 0 means none.
func (e *estimate) advise(setup memest.Setup, budget int64) error {
	list := func(changes []memest.Change) (all []change) {
		for _, c := range changes {
			advice := change{What: c.What, Cost: c.Cost, Bytes: c.Bytes}
			if budget > 0 {
				advice.Fits = &c.Fits
			}
			all = append(all, advice)
		}
		return all
	}
	changes, err := memest.Advise(setup, budget)
	e.Advice = list(changes)
	enough := func(c memest.Change) bool { return c.Fits }
	if err != nil || budget == 0 || slices.ContainsFunc(changes, enough) {
		return err
	}
	changes, err = memest.Combine(setup, budget)
	e.Combined = list(changes)
	return err
}
