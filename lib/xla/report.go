package xla

import (
	"fmt"
	"iter"
	"runtime"
	"slices"
	"strings"

	"github.com/gomlx/compute/dtypes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/shardbook/shardbook/lib/xla/plugin"
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
	return latest(&p.compiled, (*executable).collectives)
}

func (e *executable) collectives() (Report, error) {
	m, err := e.optimized()
	if err != nil {
		return nil, err
	}
	return m.report(), nil
}

// optimized returns the optimized program, an HloModuleProto.
func (e *executable) optimized() (m message, err error) {
	code, format, err := plugin.OptimizedProgram(e.backend.plugin, executableHandle(e.Executable))
	runtime.KeepAlive(e)
	if err != nil {
		return m, err
	}
	name, ok := map[string]protoreflect.FullName{
		"hlo":             "xla.HloModuleProto",
		"hlo_with_config": "xla.HloModuleProtoWithConfig",
	}[format]
	if !ok {
		return m, fmt.Errorf("plugin %q returns its optimized program as %q: use one that returns hlo",
			e.backend.plugin.Path, format)
	}
	module, err := protoregistry.GlobalTypes.FindMessageByName(name)
	if err != nil {
		return m, fmt.Errorf("go-xla has no message %s: build with v0.4.1", name)
	}
	m = message{module.New()}
	if err := proto.Unmarshal(code, m.Interface()); err != nil {
		return m, fmt.Errorf("reading the optimized program: %w", err)
	}
	if format == "hlo_with_config" {
		m = m.message("hlo_module")
	}
	return m, nil
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

// report counts the collectives of a module.
func (m message) report() (found Report) {
	for t := range m.collectives() {
		found = found.with(t)
	}
	found.sort()
	return found
}

func (r Report) sort() {
	slices.SortFunc(r, func(a, b Traffic) int { return int(a.Kind) - int(b.Kind) })
}

// collectives yields the collectives of a module, with the devices of a group of each.
func (m message) collectives() iter.Seq2[Traffic, []int64] {
	return func(yield func(Traffic, []int64) bool) {
		for _, computation := range m.messages("computations") {
			sizes := map[int64]int64{} // of each instruction's result
			instructions := computation.messages("instructions")
			for _, in := range instructions {
				sizes[in.field("id").Int()] = in.message("shape").byteSize()
			}
			for _, in := range instructions {
				// On GPUs an operation is a pair of instructions; the first is counted.
				opcode, first := strings.CutSuffix(in.field("opcode").String(), "-start")
				kind, ok := kindNamed(opcode)
				if !ok {
					continue
				}
				var given int64
				operands := in.field("operand_ids").List()
				for i := range operands.Len() {
					given += sizes[operands.Get(i).Int()]
				}
				result := sizes[in.field("id").Int()]
				if parts := in.message("shape").messages("tuple_shapes"); first && kind != AllReduce && len(parts) > 1 {
					result = parts[1].byteSize() // after the operand
				}
				if !yield(Traffic{kind, 1, max(given, result)}, in.between()) {
					return
				}
			}
		}
	}
}

func (r Report) with(t Traffic) Report {
	for i := range r {
		if r[i].Kind == t.Kind {
			r[i].Count += t.Count
			r[i].Bytes += t.Bytes
			return r
		}
	}
	return append(r, t)
}

func kindNamed(opcode string) (CollectiveKind, bool) {
	for _, kind := range []CollectiveKind{AllReduce, AllGather, ReduceScatter, AllToAll, Permute} {
		if kind.String() == opcode {
			return kind, true
		}
	}
	return 0, false
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
	dims := m.field("dimensions").List()
	for i := range dims.Len() {
		size *= dims.Get(i).Int()
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
