//go:build !resident

package xplane

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"
)

// An XSpace has planes (devices, the host) of lines (streams, threads) of events. Names of events and of statistics are
// in numbered tables of the plane.
//
// Source: openxla/xla, xplane.proto for the fields, xla/tsl/profiler/utils/xplane_schema.cc for the names, and
// xla/backends/profiler/gpu/cupti_collector.cc for what the events of GPUs have.

const (
	gpuPlane    = "/device:GPU:" // and the number
	hostPlanes  = "/host:"
	threadPlane = "/host:CPU" // parts of XLA, with the names of threads; the driver's calls are in /host:CUPTI

	// streamLine begins the name of a stream. Files that other programs have processed also have lines of steps,
	// modules and operations, which repeat what the streams have.
	streamLine = "Stream #"

	environment = "Task Environment"
)

// Read parses a serialized XSpace: what XLA's profiler returns, or a file .xplane.pb of JAX's. Some plugins append a
// zero byte, which is not a field.
func Read(space []byte) (*Profile, error) {
	p, err := read(space)
	if err != nil && space[len(space)-1] == 0 {
		p, err = read(space[:len(space)-1])
	}
	return p, err
}

func read(space []byte) (*Profile, error) {
	r := reader{threads: map[uint64]string{}, named: map[string]int{}}
	var planes []plane
	for number, f := range r.fields(space) {
		switch number {
		case 1:
			planes = append(planes, r.plane(f.bytes))
		case 2, 3:
			r.profile.Warnings = append(r.profile.Warnings, string(f.bytes))
		}
	}
	// The other planes need what is in these.
	before := func(p plane) int { return slices.Index([]string{threadPlane, environment}, p.name) }
	slices.SortStableFunc(planes, func(a, b plane) int { return cmp.Compare(before(b), before(a)) })
	for _, p := range planes {
		r.read(p)
	}
	if r.err != nil {
		return nil, r.err
	}
	return &r.profile, nil
}

type reader struct {
	wire
	profile Profile
	begin   int64             // from which lines count time, in nanoseconds since 1970; 0: they count from 1970
	threads map[uint64]string // names by number, which is that of a thread's line in each plane
	named   map[string]int    // threads of that name
}

type plane struct {
	name  string
	parts parts             // lines 3, kinds of events 4, texts 5, and statistics 6
	texts map[uint64]string // names of statistics, and what they refer to
}

func (r *reader) plane(message []byte) plane {
	p := plane{parts: r.parts(message), texts: map[uint64]string{}}
	p.name = string(p.parts.last(2))
	for key, value := range r.entries(p.parts[5].bytes) {
		p.texts[key] = string(value.last(2))
	}
	return p
}

// read adds what a plane has to the profile.
func (r *reader) read(p plane) {
	var device Device
	for _, message := range p.parts[6].bytes {
		switch name, s := r.stat(p, message); {
		case name == "gpu_device_name":
			device.Name = s.text
		case name == "memory_bandwidth":
			device.MemoryBandwidth = float64(s.number)
		case name == "profile_start_time" && p.name == environment: // of files that other programs have processed
			r.begin = s.number
		}
	}
	ordinal, gpu := strings.CutPrefix(p.name, gpuPlane)
	device.Number, _ = strconv.Atoi(ordinal)
	if gpu {
		r.profile.Devices = append(r.profile.Devices, device)
	} else if !strings.HasPrefix(p.name, hostPlanes) {
		return
	}
	kinds := map[uint64]Event{} // what events of a kind have in common
	for key, value := range r.entries(p.parts[4].bytes) {
		kind := Event{Name: string(value.last(2))}
		for _, stat := range value[5].bytes {
			kind.set(r.stat(p, stat))
		}
		kinds[key] = kind
	}
	for _, message := range p.parts[3].bytes {
		r.line(p, message, kinds, gpu, device.Number)
	}
}

// line reads the events of a line.
func (r *reader) line(p plane, message []byte, kinds map[uint64]Event, gpu bool, device int) {
	line := r.parts(message)
	name, begin := string(line.last(2)), int64(line[3].varint)
	if gpu && !strings.HasPrefix(name, streamLine) {
		return
	}
	if gpu {
		name, _, _ = strings.Cut(name, "(") // then come the kinds of events
	} else {
		name = r.thread(line[1].varint, name)
	}
	const last = 1<<62 - 1<<54 // in 2115: the sum of two, and of an event's times, is in range
	if begin < 0 || begin > last || r.begin < 0 || r.begin > last {
		r.fail("a line's time is out of range")
	}
	for _, message := range line[4].bytes {
		e := r.event(p, message, kinds, r.begin+begin)
		if e.Host, e.Line = !gpu, name; gpu {
			e.Device = device
		}
		r.profile.Events = append(r.profile.Events, e)
	}
}

// thread names a thread of the host. Several may have the same name: that of the program, in Go.
func (r *reader) thread(id uint64, name string) string {
	if known, ok := r.threads[id]; ok {
		return known
	}
	if name == "" {
		name = "thread"
	}
	r.named[name]++
	if n := r.named[name]; n > 1 {
		name += " " + strconv.Itoa(n)
	}
	r.threads[id] = name
	return name
}

func (r *reader) event(p plane, message []byte, kinds map[uint64]Event, begin int64) Event {
	event := r.parts(message)
	offset, took := int64(event[2].varint), int64(event[3].varint) // picoseconds
	if took < 0 {
		r.fail("an event ends before it starts")
	}
	e := kinds[event[1].varint]
	e.Start, e.Duration = time.Unix(0, begin+offset/1000), time.Duration(took/1000)
	for _, stat := range event[4].bytes { // the event's own override its kind's
		e.set(r.stat(p, stat))
	}
	return e
}

// set takes over a statistic.
func (e *Event) set(name string, s statistic) {
	switch name {
	case "hlo_module":
		e.Module = s.text
	case "hlo_op":
		e.Operation = s.text
	case "correlation_id":
		e.Correlation = s.number
	case "device_id":
		e.Device = int(s.number)
	case "flops":
		e.FLOPs = s.number
	case "bytes_accessed":
		e.Bytes = s.number
	case "kernel_details":
		e.Kernel = kernel(s.text)
	case "memcpy_details", "Memset_details":
		e.copied(s.text)
	}
}

// kernel reads XLA's description of a launch: "regs:32 static_shared:0 dynamic_shared:0 grid:8,1,1 block:128,1,1
// occ_pct:100". What is not in it is 0.
func kernel(details string) (k Kernel) {
	size := func(text string) (n [3]int) {
		for i, axis := range strings.SplitN(text, ",", len(n)) {
			n[i], _ = strconv.Atoi(axis)
		}
		return n
	}
	for field := range strings.FieldsSeq(details) {
		key, value, _ := strings.Cut(field, ":")
		number, _ := strconv.Atoi(value)
		switch key {
		case "regs":
			k.Registers = number
		case "static_shared", "dynamic_shared":
			k.SharedMemory += number
		case "grid":
			k.Grid = size(value)
		case "block":
			k.Block = size(value)
		case "occ_pct":
			k.Occupancy, _ = strconv.ParseFloat(value, 64)
		}
	}
	return k
}

// copied reads XLA's description of a copy or a memset: "kind_src:pinned kind_dst:device size:64 dest:0 async:1", or
// "kind:device num_bytes:64 async:1".
func (e *Event) copied(details string) {
	for field := range strings.FieldsSeq(details) {
		switch key, value, _ := strings.Cut(field, ":"); key {
		case "kind_src":
			e.From = value
		case "kind_dst":
			e.To = value
		case "size", "num_bytes":
			e.Bytes, _ = strconv.ParseInt(value, 10, 64)
		}
	}
}

// statistic is a value with a name: a text or a number.
type statistic struct {
	text   string
	number int64
}

func (r *reader) stat(p plane, message []byte) (name string, s statistic) {
	for number, f := range r.fields(message) {
		switch number {
		case 1:
			name = p.texts[f.varint]
		case 3, 4: // unsigned and signed
			s.number = int64(f.varint)
		case 5:
			s.text = string(f.bytes)
		case 7: // a reference
			s.text = p.texts[f.varint]
		}
	}
	return name, s
}

func (r *reader) fail(why string) {
	if r.err == nil {
		r.err = errors.New(why)
	}
}
