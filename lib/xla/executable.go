package xla

import (
	"fmt"

	"github.com/gomlx/compute"
)

// executable is go-xla's executable for our buffers.
type executable struct {
	compute.Executable
	backend *Backend
}

// Execute runs the program; GoMLX calls it. inputs and donate are device-major.
func (e *executable) Execute(inputs []compute.Buffer, donate []bool,
	device compute.DeviceNum) ([]compute.Buffer, error) {
	inner := make([]compute.Buffer, len(inputs))
	for i, input := range inputs {
		var err error
		if inner[i], err = e.backend.inner(input); err != nil {
			return nil, fmt.Errorf("input %d: %w", i, err)
		}
	}
	outputs, err := e.Executable.Execute(inner, donate, device)
	if err != nil {
		return nil, explain(err)
	}
	for i, donated := range donate {
		if donated {
			inputs[i].(*buffer).entry.remove()
		}
	}
	for i, output := range outputs {
		if outputs[i], err = e.backend.own(output, nil); err != nil {
			return nil, err
		}
	}
	return outputs, nil
}

// Memory is the memory that a compiled program needs on each device, in bytes, as XLA plans it.
type Memory struct {
	Arguments int64 // inputs
	Outputs   int64 // outputs, including those that reuse an input's memory
	Aliased   int64 // outputs that reuse a donated input's memory
	Temporary int64 // buffers that live only while the program runs
	Code      int64 // machine code
}

// Total returns what the program needs while it runs: arguments, outputs with memory of their own, and temporary
// buffers.
func (m Memory) Total() int64 { return m.Arguments + m.Outputs - m.Aliased + m.Temporary }

// memory returns XLA's memory statistics of a compiled program.
func (e *executable) memory() Memory {
	m := loadedExecutable(e.Executable).OnDeviceMemoryUsageStats
	return Memory{Arguments: m.Inputs, Outputs: m.Outputs, Aliased: m.Aliases, Temporary: m.Temporary,
		Code: m.GeneratedCode}
}
