package xla

import (
	"cmp"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"strings"

	"github.com/gomlx/compute/dtypes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/shardbook/shardbook/internal/plugin"
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
		h, err := e.optimized()
		if err != nil {
			return nil, err
		}
		found := map[string]Report{}
		for t, devices := range h.collectives() {
			if of := by(devices); of != "" {
				found[of] = found[of].with(t)
			}
		}
		return found, nil
	})
}

// optimized returns the optimized program.
func (e *executable) optimized() (*hlo, error) {
	code, format, err := plugin.OptimizedProgram(e.backend.plugin, executableHandle(e.Executable))
	runtime.KeepAlive(e)
	if err != nil {
		return nil, err
	}
	name, ok := map[string]protoreflect.FullName{
		"hlo":             "xla.HloModuleProto",
		"hlo_with_config": "xla.HloModuleProtoWithConfig",
	}[format]
	if !ok {
		return nil, fmt.Errorf("plugin %q returns its optimized program as %q: use one that returns hlo",
			e.backend.plugin.Path, format)
	}
	module, err := protoregistry.GlobalTypes.FindMessageByName(name)
	if err != nil {
		return nil, fmt.Errorf("go-xla has no message %s: build with v0.4.1", name)
	}
	m := message{module.New()}
	if err := proto.Unmarshal(code, m.Interface()); err != nil {
		return nil, fmt.Errorf("reading the optimized program: %w", err)
	}
	if format == "hlo_with_config" {
		m = m.message("hlo_module")
	}
	return readHLO(m), nil
}

// message reads XLA's protobuf messages by field names, since go-xla does not export their Go types.
type message struct{ protoreflect.Message }

func (m message) field(name protoreflect.Name) protoreflect.Value {
	return m.Get(m.Descriptor().Fields().ByName(name))
}

func (m message) message(name protoreflect.Name) message { return message{m.field(name).Message()} }

func (m message) messages(name protoreflect.Name) []message {
	list := m.field(name).List()
	all := make([]message, list.Len())
	for i := range all {
		all[i] = message{list.Get(i).Message()}
	}
	return all
}

// integers reads a list of integers.
func (m message) integers(name protoreflect.Name) (all []int64) {
	list := m.field(name).List()
	for i := range list.Len() {
		all = append(all, list.Get(i).Int())
	}
	return all
}

// collectives yields the collectives of a program, with the devices of a group of each.
func (h *hlo) collectives() iter.Seq2[Traffic, []int64] {
	return func(yield func(Traffic, []int64) bool) {
		for _, c := range h.all {
			for _, i := range c.instructions {
				kind := slices.Index(kindNames, i.kind())
				if kind < 0 {
					continue
				}
				var given int64
				for _, operand := range i.operands {
					given += operand.bytes()
				}
				if !yield(Traffic{CollectiveKind(kind), 1, max(given, i.written(false))}, i.between()) {
					return
				}
			}
		}
	}
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

// byteSize returns the size of a value of XLA's shape.
func (m message) byteSize() int64 {
	if tuple := m.messages("tuple_shapes"); len(tuple) > 0 {
		var sum int64
		for _, part := range tuple {
			sum += part.byteSize()
		}
		return sum
	}
	size := elementSize(m.field("element_type").Enum())
	for _, d := range m.integers("dimensions") {
		size *= d
	}
	return size
}

// elementSize returns the bytes of an element of XLA's type, whose numbers are GoMLX's.
func elementSize(of protoreflect.EnumNumber) int64 {
	switch dtype := dtypes.DType(of); {
	case dtype == dtypes.Complex128:
		return 16
	case dtype.IsSupported():
		return int64(dtype.Size())
	case of == 14 || of == 17: // opaque types and tokens
		return 0
	}
	return 1 // small floats and integers, which XLA pads to a byte on CPUs
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

// between returns the devices of an operation's first group, or the first pair of different devices that it sends
// between.
func (i *instruction) between() (devices []int64) {
	if len(i.plan) > planDevices {
		return betweenPlanned(i.plan)
	}
	m := i.message
	for _, pair := range m.messages("source_target_pairs") {
		from, to := pair.field("source").Int(), pair.field("target").Int()
		if from != to {
			return []int64{from, to}
		}
	}
	groups := m.messages("replica_groups")
	if len(groups) == 0 {
		groups = m.message("collective_device_list").messages("replica_groups")
	}
	if len(groups) == 0 {
		return m.message("iota_collective_device_list").firstOfIota()
	}
	return groups[0].integers("replica_ids")
}

// firstOfIota returns the first group of a list in iota form: the numbers from 0, reshaped, transposed, and split
// evenly.
func (m message) firstOfIota() (devices []int64) {
	dims, order := m.integers("iota_reshape_dims"), m.integers("iota_transpose_perm")
	if len(order) == 0 {
		for i := range dims {
			order = append(order, int64(i))
		}
	}
	for k := range m.field("num_devices_per_group").Int() {
		var device int64
		for i := len(order) - 1; i >= 0; i-- { // the last axis varies fastest
			axis := order[i]
			stride := int64(1)
			for _, d := range dims[axis+1:] {
				stride *= d
			}
			device += k % dims[axis] * stride
			k /= dims[axis]
		}
		devices = append(devices, device)
	}
	return devices
}
