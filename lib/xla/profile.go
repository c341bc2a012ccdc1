package xla

import (
	"cmp"
	"errors"
	"slices"
	"time"
)

// Profile is a recording of XLA's profiler.
type Profile struct{ events []event }

// event took time on a device, or in XLA's code on the host.
type event struct {
	Device            bool
	Module, Operation string // what it is part of, as in [Operation]; "" if XLA does not say
	Duration          time.Duration
}

// Profile runs f and records all that runs in the process meanwhile with XLA's profiler. It records one profile at a
// time. If the plugin has no profiler, the error wraps [ErrNoProfiler] and f does not run. f's error is returned
// unchanged.
func (b *Backend) Profile(f func() error) (*Profile, error) {
	if b.IsFinalized() {
		return nil, errors.New("the backend is closed: open another")
	}
	if f == nil {
		return nil, errors.New("the function to profile is nil: give one")
	}
	events, err := b.owner.record(f)
	if err != nil {
		return nil, err
	}
	return &Profile{events}, nil
}

// OperationTime is the total time of the events of one operation, on all devices.
type OperationTime struct {
	Module, Name string // as in [Operation]
	Events       int
	Total        time.Duration
}

// Operations returns the total time of each operation, the longest first. If devices have events of operations, those
// of the host, which launches them, are left out. A loop's time includes its body's, if XLA has an event for the loop.
func (p *Profile) Operations() []OperationTime {
	ofDevices := slices.ContainsFunc(p.events, func(e event) bool { return e.Device && e.Operation != "" })
	at := map[[2]string]int{}
	var all []OperationTime
	for _, e := range p.events {
		if e.Operation == "" || ofDevices && !e.Device {
			continue
		}
		key := [2]string{e.Module, e.Operation}
		i, seen := at[key]
		if !seen {
			i = len(all)
			at[key], all = i, append(all, OperationTime{Module: e.Module, Name: e.Operation})
		}
		all[i].Events++
		all[i].Total += e.Duration
	}
	slices.SortStableFunc(all, func(a, b OperationTime) int { return cmp.Compare(b.Total, a.Total) })
	return all
}
