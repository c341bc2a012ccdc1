package xla

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Report lists the collectives of a compiled program, after XLA combined, split and removed some.
type Report []Traffic

// Traffic is the collectives of one kind that a device takes part in.
type Traffic struct {
	Kind  CollectiveKind
	Count int // operations in the program; one inside a loop counts once

	// Bytes is the size of their data on one device as nccl-tests counts it: of the input or the output, whichever is
	// larger. What is sent is that times a factor of the algorithm (see lib/collective/plan).
	Bytes int64
}

// Of returns the operations of one kind.
func (r Report) Of(kind CollectiveKind) Traffic {
	for _, t := range r {
		if t.Kind == kind {
			return t
		}
	}
	return Traffic{Kind: kind}
}

// String returns the report on one line: "all-reduce ×1, 512 KiB".
func (r Report) String() string {
	if len(r) == 0 {
		return "no collectives"
	}
	parts := make([]string, len(r))
	for i, t := range r {
		parts[i] = fmt.Sprintf("%v ×%d, %s", t.Kind, t.Count, byteString(t.Bytes))
	}
	return strings.Join(parts, "; ")
}

// byteString formats bytes in binary units, with a decimal unless it is exact.
func byteString(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	unit, size := 0, float64(n)
	for size >= 1024 && unit < len(units)-1 {
		size /= 1024
		unit++
	}
	if size == float64(int64(size)) {
		return fmt.Sprintf("%d %s", int64(size), units[unit])
	}
	return fmt.Sprintf("%.1f %s", size, units[unit])
}

// Collectives reports the collectives in the program that was most recently compiled or run, after XLA's optimizations.
// It returns an error before the first Call or Prepare, and after Close.
func (p *Program) Collectives() (Report, error) {
	all, err := p.reports(func([]int64) string { return "all" })
	return all["all"], err
}

// CollectivesAlong is [Program.Collectives] by the mesh axes along which the operations' groups extend: "data", or
// "data,tensor" for groups of devices that differ in both. Operations in groups of one device are not listed.
func (p *Program) CollectivesAlong() (map[string]Report, error) { return p.reports(p.mesh.differ) }

// reports lists the collectives by a property of the devices of their groups; "" leaves some out.
func (p *Program) reports(by func(devices []int64) string) (map[string]Report, error) {
	return latest(&p.compiled, func(e *executable) (map[string]Report, error) {
		all, err := e.collectives()
		if err != nil {
			return nil, err
		}
		found := map[string]Report{}
		for _, c := range all {
			if of := by(c.Devices); of != "" {
				found[of] = found[of].with(c.Traffic)
			}
		}
		return found, nil
	})
}

// between is a collective of a program, and the devices of one of its groups.
type between struct {
	Traffic
	Devices []int64
}

// with adds operations to a report, which is in the order of their kinds.
func (r Report) with(t Traffic) Report {
	i, found := slices.BinarySearchFunc(r, t.Kind, func(t Traffic, kind CollectiveKind) int {
		return cmp.Compare(t.Kind, kind)
	})
	if !found {
		return slices.Insert(r, i, t)
	}
	r[i].Count += t.Count
	r[i].Bytes += t.Bytes
	return r
}

// differ names the axes along which some of the given devices differ; no devices means all of the mesh.
func (m *Mesh) differ(devices []int64) string {
	if len(devices) == 0 {
		for i := range m.NumDevices() {
			devices = append(devices, int64(i))
		}
	}
	var names []string
	sizes := m.AxesSizes()
	stride := m.NumDevices()
	for i, name := range m.AxesNames() {
		stride /= sizes[i]
		at := func(device int64) int { return int(device) / stride % sizes[i] }
		if slices.ContainsFunc(devices, func(device int64) bool { return at(device) != at(devices[0]) }) {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}
