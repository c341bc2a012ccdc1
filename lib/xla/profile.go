package xla

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/shardbook/shardbook/lib/xla/plugin"
)

// ErrNoProfiler is wrapped by the error of Profile if the plugin has no profiler, like XLA's for CPUs.
var ErrNoProfiler = plugin.ErrNoProfiler

// Profile is a recording of XLA's profiler.
type Profile struct {
	events []event // as XLA lists them: plane by plane, line by line
}

// event took time on a device, or in XLA's code on the host.
type event struct {
	Plane, Line string        // place: for example "/device:GPU:0" and a stream of it
	Name        string        // for example a kernel's name
	Start       time.Duration // since the first event
	Duration    time.Duration

	// The operation that it is part of, as in [Operation]; both are "" if XLA does not say.
	Module, Operation string
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
	device := func(e event) bool { return strings.HasPrefix(e.Plane, "/device:") }
	ofDevices := slices.ContainsFunc(p.events, func(e event) bool { return e.Operation != "" && device(e) })
	type key struct{ module, name string }
	at := map[key]int{}
	var all []OperationTime
	for _, e := range p.events {
		if e.Operation == "" || ofDevices && !device(e) {
			continue
		}
		k := key{e.Module, e.Operation}
		i, seen := at[k]
		if !seen {
			i = len(all)
			at[k] = i
			all = append(all, OperationTime{Module: e.Module, Name: e.Operation})
		}
		all[i].Events++
		all[i].Total += e.Duration
	}
	slices.SortStableFunc(all, func(a, b OperationTime) int { return cmp.Compare(b.Total, a.Total) })
	return all
}
