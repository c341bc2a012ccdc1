//go:build !resident

package xla

// moved returns the bytes that one run of an instruction must move: what it reads of its operands and writes of its
// result, each once.
func (i *instruction) moved() int64 {
	total := i.written(false)
	counted := map[*instruction]bool{}
	for _, operand := range i.operands {
		if !counted[operand] {
			counted[operand] = true
			total += operand.readBy(i)
		}
	}
	return total
}

// bytes is the size of the instruction's result.
func (i *instruction) bytes() int64 { return i.message.message("shape").byteSize() }

// readBy returns how many bytes of i's result the users read, each part once.
func (i *instruction) readBy(users ...*instruction) int64 {
	var total int64
	for _, user := range users {
		for n, operand := range user.operands {
			if operand == i {
				total += user.reads(n)
			}
		}
	}
	return min(total, i.bytes())
}

// reads returns how many bytes of operand n the instruction reads.
func (i *instruction) reads(n int) int64 {
	size := i.operand(n).bytes()
	switch i.opcode {
	case "slice", "dynamic-slice", "gather":
		if n == 0 {
			return i.bytes()
		}
	case "dynamic-update-slice": // in place
		if n == 0 {
			return 0
		}
	case "scatter": // in place: the elements that are added to
		if n < len(i.operands)/2 {
			return min(size, i.operand(len(i.operands)-1).bytes())
		}
	case "bitcast", "reshape":
		if len(i.users) > 0 {
			return i.readBy(i.users...)
		}
	case "fusion":
		if parameter := i.parameter(n); parameter != nil {
			return parameter.readBy(parameter.users...)
		}
	}
	return size
}

// parameter returns the parameter for operand n in a fusion's computation.
func (i *instruction) parameter(n int) *instruction {
	if len(i.called) == 0 {
		return nil
	}
	for _, inner := range i.called[0].instructions {
		if inner.opcode == "parameter" && inner.field("parameter_number").Int() == int64(n) {
			return inner
		}
	}
	return nil
}

// written returns how many bytes of its result the instruction writes. Inside a fusion that is less than all only if
// the rest comes from outside.
func (i *instruction) written(fused bool) int64 {
	switch i.opcode {
	case "dynamic-update-slice":
		if !fused || i.operand(0).isParameter() {
			return i.operand(1).bytes()
		}
	case "scatter":
		if !fused || i.operand(0).isParameter() {
			return min(i.bytes(), i.operand(len(i.operands)-1).bytes())
		}
	case "bitcast", "reshape":
		if fused {
			return i.operand(0).written(fused)
		}
	case "tuple":
		if fused {
			var total int64
			for _, part := range i.operands {
				total += part.written(fused)
			}
			return total
		}
	case "fusion":
		if len(i.called) > 0 && i.called[0].root != nil {
			return i.called[0].root.written(true)
		}
	case "all-gather-start", "collective-permute-start": // of the operand, the result and more
		if parts := i.message.message("shape").messages("tuple_shapes"); len(parts) > 1 {
			return parts[1].byteSize()
		}
	case "copy-start": // of the result, the operand and more
		if parts := i.message.message("shape").messages("tuple_shapes"); len(parts) > 0 {
			return parts[0].byteSize()
		}
	}
	return i.bytes()
}

func (i *instruction) isParameter() bool {
	for i.opcode == "bitcast" && len(i.operands) > 0 {
		i = i.operands[0]
	}
	return i.opcode == "parameter"
}
