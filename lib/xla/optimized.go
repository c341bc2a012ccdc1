//go:build !resident

package xla

import (
	"fmt"
	"runtime"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/shardbook/shardbook/internal/plugin"
)

// What is asked of a compiled program, after XLA's optimizations.

// collectives lists the program's collectives.
func (e *executable) collectives() ([]between, error) {
	h, err := e.optimized()
	if err != nil {
		return nil, err
	}
	return h.collectives(), nil
}

// operations lists the program's operations.
func (e *executable) operations() ([]Operation, error) {
	h, err := e.optimized()
	if err != nil {
		return nil, err
	}
	return h.operations(h.entry, 1), nil
}

// met checks the collectives by kernels.
func (e *executable) met() error {
	h, err := e.optimized()
	if err != nil {
		return err
	}
	return h.met()
}

// optimized returns the optimized program.
func (e *executable) optimized() (*hlo, error) {
	code, format, err := plugin.OptimizedProgram(e.backend.owner.plugin, executableHandle(e.Executable))
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
			e.backend.info.Plugin, format)
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

// collectives lists the collectives of a program.
func (h *hlo) collectives() (all []between) {
	for _, c := range h.all {
		for _, i := range c.instructions {
			kind := slices.Index(kindNames, i.kind())
			if kind < 0 {
				continue
			}
			var given int64
			for _, operand := range i.operands {
				if given += operand.bytes(); CollectiveKind(kind) == AllToAllV {
					break // without the counts
				}
			}
			all = append(all, between{Traffic{CollectiveKind(kind), 1, max(given, i.written(false))}, i.between()})
		}
	}
	return all
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

// elementSizes are the bytes of an element by XLA's numbers of types (xla_data.proto, PrimitiveType), which are not
// those of PJRT and GoMLX.
var elementSizes = map[protoreflect.EnumNumber]int64{1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 2, 8: 4, 9: 8, 10: 2, 11: 4,
	12: 8, 14: 0 /* opaque */, 15: 8, 16: 2 /* BF16 */, 17: 0 /* token */, 18: 16}

// elementSize returns the bytes of an element of XLA's type.
func elementSize(of protoreflect.EnumNumber) int64 {
	if size, ok := elementSizes[of]; ok {
		return size
	}
	return 1 // small floats and integers
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
