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

// ErrNoProfiler is wrapped by the error of Profile when the plugin has no profiler. XLA's for CPUs has none.
var ErrNoProfiler = plugin.ErrNoProfiler

// Profile is what XLA's own profiler saw.
type Profile struct {
	events []event // as XLA lists them: plane by plane, line by line
}

// event is something that took time on a device, or in the host's part of XLA.
type event struct {
	Plane, Line string        // where: "/device:GPU:0", and a stream of it
	Name        string        // what: a kernel's name, say
	Start       time.Duration // since the first event
	Duration    time.Duration

	// The operation that it is part of, in [Operation]'s words; both are "" where XLA does not say.
	Module, Operation string
}

// Profile runs f and returns what XLA's own profiler saw meanwhile, of all that runs in the process. It takes one
// profile at a time. Its error wraps [ErrNoProfiler] where the plugin has none, and f did not run then; f's error is
// returned as it is. Where no profile is taken it costs nothing.
func (b *Backend) Profile(f func() error) (*Profile, error) {
	if b.IsFinalized() {
		return nil, errors.New("the backend is closed: open another")
	}
	if f == nil {
		return nil, errors.New("there is nothing to profile: give a function")
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

// OperationTime is what the events of one operation took together, on all devices.
type OperationTime struct {
	Module, Name string // as [Operation] has them
	Events       int
	Total        time.Duration
}

// Operations adds up the events of each operation and lists the longest first. Where devices have events of operations,
// those of the host, which start them, are left out. A loop's time holds that of what is in it, if XLA has an event for
// the loop.
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
