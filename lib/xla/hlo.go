//go:build !resident

package xla

import (
	"encoding/json"
	"slices"
	"strconv"
)

// hlo is a program optimized by XLA, for counting its operations. They are those of
// openxla.org/xla/operation_semantics, with the fields of hlo.proto.
type hlo struct {
	name  string
	all   []*computation
	entry *computation
}

// computation is a function of the program.
type computation struct {
	instructions []*instruction // each after its operands
	root         *instruction   // the instruction with the computation's result
}

// instruction is one operation of a computation.
type instruction struct {
	message
	opcode   string
	operands []*instruction
	users    []*instruction
	called   []*computation
	plan     []int64 // of a collective by a kernel, whose last operand it is; not among operands
}

// readHLO reads an HloModuleProto, in which a computation comes after those that it calls.
func readHLO(m message) *hlo {
	h := &hlo{name: m.field("name").String(), entry: &computation{}}
	byID := map[int64]*computation{}
	for _, message := range m.messages("computations") {
		id, c := message.field("id").Int(), readComputation(message, byID)
		if h.all, byID[id] = append(h.all, c), c; id == m.field("entry_computation_id").Int() {
			h.entry = c
		}
	}
	return h
}

func readComputation(m message, before map[int64]*computation) *computation {
	c := &computation{}
	byID := map[int64]*instruction{}
	for _, in := range m.messages("instructions") {
		i := &instruction{message: in, opcode: in.field("opcode").String()}
		for _, id := range in.integers("operand_ids") {
			if operand := byID[id]; operand != nil {
				i.operands = append(i.operands, operand)
				if last := len(operand.users) - 1; last < 0 || operand.users[last] != i {
					operand.users = append(operand.users, i)
				}
			}
		}
		i.takePlan()
		for _, id := range in.integers("called_computation_ids") {
			if called := before[id]; called != nil {
				i.called = append(i.called, called)
			}
		}
		byID[in.field("id").Int()] = i
		c.instructions = append(c.instructions, i)
	}
	c.root = byID[m.field("root_id").Int()]
	return c
}

// takePlan moves the plan of a collective by a kernel from the operands.
func (i *instruction) takePlan() {
	if last := len(i.operands) - 1; i.opcode == "custom-call" && last > 0 && slices.Contains(kindNames, i.kind()) {
		i.plan = i.operands[last].message.message("literal").integers("s64s")
		i.operands = i.operands[:last]
	}
}

// operand returns operand n, or the instruction itself if it has too few.
func (i *instruction) operand(n int) *instruction {
	if n < len(i.operands) {
		return i.operands[n]
	}
	return i
}

// shape returns the shape of the instruction's first result.
func (i *instruction) shape() message {
	shape := i.message.message("shape")
	for len(shape.messages("tuple_shapes")) > 0 {
		shape = shape.messages("tuple_shapes")[0]
	}
	return shape
}

// elements returns the number of elements of the first result.
func (i *instruction) elements() float64 {
	n := 1.0
	for _, size := range i.shape().integers("dimensions") {
		n *= float64(size)
	}
	return n
}

// size returns the length of an axis of the result, or 1 if it has no such axis.
func (i *instruction) size(axis int64) float64 {
	if dims := i.shape().integers("dimensions"); axis >= 0 && axis < int64(len(dims)) {
		return float64(dims[axis])
	}
	return 1
}

// turns returns the number of iterations of a loop, or 1 if XLA did not find it.
func (i *instruction) turns() float64 {
	var config struct {
		Trips struct{ N string } `json:"known_trip_count"`
	}
	// A text that is not JSON, or has other fields, leaves it unknown.
	_ = json.Unmarshal(i.field("backend_config").Bytes(), &config)
	n, err := strconv.ParseUint(config.Trips.N, 10, 63)
	if err != nil {
		return 1
	}
	return float64(n)
}
