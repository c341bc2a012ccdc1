package xla

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/shardbook/shardbook/internal/plugin"
)

// ErrNoProfiler is wrapped by the error of Profile if the plugin has no profiler, like XLA's for CPUs.
var ErrNoProfiler = plugin.ErrNoProfiler

// Profile is a recording of XLA's profiler.
type Profile struct{ events []event }

// event took time on a device, or in XLA's code on the host.
type event struct {
	device            bool
	module, operation string // what it is part of, as in [Operation]; "" if XLA does not say
	duration          time.Duration
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
	space, err := plugin.Record(b.plugin, f)
	if err != nil {
		return nil, err
	}
	p, err := readSpace(space)
	if err != nil {
		return nil, fmt.Errorf("reading the profile of plugin %q: %w", b.plugin.Path, err)
	}
	return p, nil
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
	ofDevices := slices.ContainsFunc(p.events, func(e event) bool { return e.device && e.operation != "" })
	at := map[[2]string]int{}
	var all []OperationTime
	for _, e := range p.events {
		if e.operation == "" || ofDevices && !e.device {
			continue
		}
		key := [2]string{e.module, e.operation}
		i, seen := at[key]
		if !seen {
			i = len(all)
			at[key], all = i, append(all, OperationTime{Module: e.module, Name: e.operation})
		}
		all[i].Events++
		all[i].Total += e.duration
	}
	slices.SortStableFunc(all, func(a, b OperationTime) int { return cmp.Compare(b.Total, a.Total) })
	return all
}
