package pjrt

import (
	"fmt"
	"runtime"

	"github.com/shardbook/shardbook/lib/resident"
)

// CompileConfig describes a program to compile.
type CompileConfig struct {
	client  *Client
	request resident.Compile
}

// Compile begins a program.
func (c *Client) Compile() *CompileConfig {
	return &CompileConfig{c, resident.Compile{Client: c.id}}
}

// WithStableHLO sets the program.
func (c *CompileConfig) WithStableHLO(program []byte) *CompileConfig {
	c.request.Program = program
	return c
}

// WithSPMD has devices run the same program.
func (c *CompileConfig) WithSPMD(devices int) *CompileConfig {
	c.request.Strategy, c.request.Devices = resident.SPMD, devices
	return c
}

// WithShardy has XLA split the program over devices.
func (c *CompileConfig) WithShardy(devices int) *CompileConfig {
	c.request.Strategy, c.request.Devices = resident.Shardy, devices
	return c
}

// WithDeviceAssignment sets the devices.
func (c *CompileConfig) WithDeviceAssignment(devices []int) *CompileConfig {
	c.request.Assignment = devices
	return c
}

// Done compiles the program.
func (c *CompileConfig) Done() (*LoadedExecutable, error) {
	got, err := resident.Call[resident.Compiled](c.client.conn, c.request)
	if err != nil {
		return nil, err
	}
	e := &LoadedExecutable{client: c.client, id: got.Program, Name: got.Name, NumOutputs: got.Outputs,
		OnDeviceMemoryUsageStats: use(got.OnDevice), OnHostMemoryUsageStats: use(got.OnHost)}
	e.cleanup = runtime.AddCleanup(e, free, garbage{c.client.conn, got.Program})
	return e, nil
}

func free(g garbage) { g.conn.Tell(resident.Free{Programs: []uint64{g.id}}) }

// LoadedExecutable is a compiled program.
type LoadedExecutable struct {
	client  *Client
	id      uint64
	cleanup runtime.Cleanup

	Name                                             string
	NumOutputs                                       int
	OnDeviceMemoryUsageStats, OnHostMemoryUsageStats ExecutableMemoryUsageStats
}

// ExecutableMemoryUsageStats is the memory of a program, in bytes.
type ExecutableMemoryUsageStats struct{ GeneratedCode, Inputs, Outputs, Aliases, Temporary int64 }

func use(m resident.MemoryUse) ExecutableMemoryUsageStats {
	return ExecutableMemoryUsageStats{m.Code, m.Inputs, m.Outputs, m.Aliases, m.Temporary}
}

// ID returns the program's number in its process.
func (e *LoadedExecutable) ID() uint64 { return e.id }

// Destroy lets the process free the program.
func (e *LoadedExecutable) Destroy() error {
	if e != nil && e.id != 0 {
		e.cleanup.Stop()
		free(garbage{e.client.conn, e.id})
		e.id = 0
	}
	return nil
}

// ExecutionConfig describes a run of a program.
type ExecutionConfig struct {
	program *LoadedExecutable
	inputs  []*Buffer
	donate  []bool
	device  int
}

// Execute begins a run.
func (e *LoadedExecutable) Execute(inputs ...*Buffer) *ExecutionConfig {
	return &ExecutionConfig{program: e, inputs: inputs, device: -1}
}

// DonateNone leaves all inputs valid.
func (c *ExecutionConfig) DonateNone() *ExecutionConfig {
	c.donate = nil
	return c
}

// SetDonate sets which inputs the program may overwrite. They are not valid afterwards.
func (c *ExecutionConfig) SetDonate(donate []bool) *ExecutionConfig {
	c.donate = donate
	return c
}

// OnDeviceByNum sets the device of a program that runs on any.
func (c *ExecutionConfig) OnDeviceByNum(device int) *ExecutionConfig {
	c.device = device
	return c
}

// Done runs the program.
func (c *ExecutionConfig) Done() ([]*Buffer, error) {
	e := c.program
	if e.id == 0 {
		return nil, fmt.Errorf("the program cannot run: %w", errDestroyed)
	}
	request := resident.Execute{Program: e.id, Donate: c.donate, Device: c.device}
	for i, input := range c.inputs {
		if err := input.Check(); err != nil {
			return nil, fmt.Errorf("input %d: %w", i, err)
		}
		request.Inputs = append(request.Inputs, input.array.ID)
	}
	got, err := resident.Call[resident.Executed](e.client.conn, request)
	runtime.KeepAlive(c)
	if err != nil {
		return nil, err
	}
	for i, donated := range c.donate {
		if donated {
			c.inputs[i].forget()
		}
	}
	outputs := make([]*Buffer, len(got.Outputs))
	for i, array := range got.Outputs {
		outputs[i] = NewBuffer(e.client, array)
	}
	return outputs, nil
}
