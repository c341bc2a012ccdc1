// Package xplane has recordings of XLA's profiler, which are in the format XSpace (xplane.proto): what ran when, on the
// threads of the host and on the streams of the devices.
//
// lib/xla records them, and lib/trace draws them.
package xplane

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Profile is a recording of XLA's profiler. It is plain data.
type Profile struct {
	Devices  []Device
	Events   []Event  // thread by thread and stream by stream, each as the profiler wrote it
	Warnings []string // the profiler's own errors and warnings, such as that it dropped events
}

// Device is a device of the recording.
type Device struct {
	Number          int
	Name            string  // as the driver names it: "NVIDIA H100 80GB HBM3"; "" if the profiler does not say
	MemoryBandwidth float64 // bytes a second, by the clock and the width of its memory; 0 if the profiler does not say
}

// Event is a period in which a stream of a device, or a thread of the host, did one thing. Events of a thread are
// nested: the call of a program contains the driver's calls that launch its kernels.
type Event struct {
	Host     bool   // on a thread of the host; else on a stream of Device
	Device   int    // the device's number; of a call of the driver the number of the device that it is for
	Line     string // the stream, "Stream #7", or the name of the thread
	Name     string // of a kernel, a copy ("MemcpyH2D"), a call of the driver ("cuLaunchKernel") or a part of XLA
	Start    time.Time
	Duration time.Duration

	// Module and Operation are the operation of a compiled program that the event is part of, as in xla.Operation.
	// They are "" if XLA does not say. An operation may have several kernels.
	Module, Operation string

	// Correlation is the same number, other than 0, for a call that launches work on a device and for this work. The
	// launch of a CUDA graph has the number of each kernel in it.
	Correlation int64

	FLOPs int64 // 0 if the profiler does not say, as on CUDA
	Bytes int64 // that a copy moves, a memset writes, or an operation accesses; 0 if the profiler does not say

	Kernel   Kernel // how a kernel was launched; zero for other events
	From, To string // the kinds of memory of a copy, as CUPTI names them: "device", "pinned", "pageable"
}

// Kernel is the launch configuration of a kernel.
type Kernel struct {
	Grid, Block  [3]int
	Registers    int     // of a thread
	SharedMemory int     // bytes of a block, static and dynamic
	Occupancy    float64 // the percentage of a processor's threads that can be resident, by these numbers
}

// String returns the configuration in one line: "grid 132×1×1, block 128×1×1, 96 registers, 32768 B shared,
// occupancy 31.25 %".
func (k Kernel) String() string {
	size := func(n [3]int) string { return fmt.Sprintf("%d×%d×%d", n[0], n[1], n[2]) }
	return fmt.Sprintf("grid %s, block %s, %d registers, %d B shared, occupancy %g %%", size(k.Grid), size(k.Block),
		k.Registers, k.SharedMemory, k.Occupancy)
}

// Detail describes the launch of a kernel, or the kinds of memory of a copy; "" for other events.
func (e Event) Detail() string {
	switch {
	case e.Kernel != (Kernel{}):
		return e.Kernel.String()
	case e.From != "" || e.To != "":
		return e.From + " to " + e.To
	}
	return ""
}

// End is when the event ended.
func (e Event) End() time.Time { return e.Start.Add(e.Duration) }

// OperationTime is the total time of the events of one operation, on all devices.
type OperationTime struct {
	Module, Name string // as in xla.Operation
	Events       int
	Total        time.Duration
}

// Operations returns the total time of each operation, the longest first. If devices have events of operations, those
// of the host, which launches them, are left out. A loop's time includes its body's, if XLA has an event for the loop.
func (p *Profile) Operations() []OperationTime {
	ofDevices := slices.ContainsFunc(p.Events, func(e Event) bool { return !e.Host && e.Operation != "" })
	at := map[[2]string]int{}
	var all []OperationTime
	for _, e := range p.Events {
		if e.Operation == "" || ofDevices && e.Host {
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
