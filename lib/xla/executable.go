package xla

import (
	"fmt"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
)

// executable is go-xla's executable for our buffers.
type executable struct {
	compute.Executable
	backend *Backend
	devices []compute.DeviceNum // nil: any one
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
	if e.backend.target {
		return e.zeros(inputs, donate, device)
	}
	outputs, err := e.Executable.Execute(inner, donate, e.backend.physical(device))
	if err != nil {
		return nil, explain(err)
	}
	for i, donated := range donate {
		if donated {
			inputs[i].(*buffer).entry.remove()
		}
	}
	devices := e.on(device)
	for i, output := range outputs {
		if outputs[i], err = e.backend.own(devices[i*len(devices)/len(outputs)])(output, nil); err != nil {
			return nil, err
		}
	}
	return outputs, nil
}

// on returns the devices that the program runs on: its own, or else the given one.
func (e *executable) on(device compute.DeviceNum) []compute.DeviceNum {
	if e.devices == nil {
		return []compute.DeviceNum{device}
	}
	return e.devices
}

// zeros returns outputs of the program's shapes without running it, and frees what was donated.
func (e *executable) zeros(inputs []compute.Buffer, donate []bool, device compute.DeviceNum) ([]compute.Buffer, error) {
	for i, donated := range donate {
		if donated {
			if err := inputs[i].Finalize(); err != nil {
				return nil, err
			}
		}
	}
	var outputs []compute.Buffer
	for _, d := range e.on(device) {
		for _, shape := range e.Outputs() {
			zeros := dtypes.MakeAnySlice(shape.DType, shape.Size())
			output, err := e.backend.BufferFromFlatData(d, zeros, shape)
			if err != nil {
				return nil, err
			}
			outputs = append(outputs, output)
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
