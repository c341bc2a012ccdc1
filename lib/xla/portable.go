package xla

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
)

// Portable is a program that runs on any one device of a backend, for ranks with devices of their own (MPMD: multiple
// programs, multiple data). It is compiled once for all devices, when it is first called with a set of input shapes.
//
// Its methods may be called from several goroutines at once, for the same device or for others.
type Portable struct{ compiled }

// CompilePortable makes a program of a graph function without collectives. The program may reuse the memory of the
// donated inputs, counted from 0, for its outputs: see [Shardings.Donates].
func CompilePortable[F graph.ExecGraphFn](b *Backend, fn F, donated ...int) (*Portable, error) {
	if b == nil {
		return nil, errors.New("the backend is nil: open one with xla.Open")
	}
	p := &Portable{}
	if err := compileLater(&p.compiled, b, fn, slices.Clone(donated)); err != nil {
		return nil, err
	}
	return p, nil
}

// Put copies a host value, a *tensors.Tensor or anything that GoMLX converts to one, to a device.
func (b *Backend) Put(value any, device int) (*tensors.Tensor, error) {
	if b.IsFinalized() {
		return nil, errors.New("the backend is closed: open another")
	}
	if err := b.has(compute.DeviceNum(device)); err != nil {
		return nil, err
	}
	host, err := hostTensor(value)
	if err != nil {
		return nil, err
	}
	var buffer compute.Buffer
	if e := host.ConstFlatData(func(flat any) {
		buffer, err = b.BufferFromFlatData(compute.DeviceNum(device), flat, host.Shape())
	}); e != nil || err != nil {
		return nil, fmt.Errorf("copying a tensor to device %d: %w", device, errors.Join(e, err))
	}
	return tensors.FromBuffer(buffer)
}

// Prepare compiles the program for inputs of these shapes without running it, so that the first Call with them is fast.
func (p *Portable) Prepare(inputs ...shapes.Shape) (err error) {
	defer recoverGraph(&err)
	if err := p.use(); err != nil {
		return err
	}
	defer p.closing.RUnlock()
	if err := checkDonated(p.donated, len(inputs)); err != nil {
		return err
	}
	_, err = p.build(inputs...)
	return err
}

// Call runs the program on a device. Each argument is a tensor on that device, or a host value, which is copied there
// for the call. The outputs are on that device.
func (p *Portable) Call(device int, args ...any) (_ []*tensors.Tensor, err error) {
	defer recoverGraph(&err)
	if err := p.use(); err != nil {
		return nil, err
	}
	defer p.closing.RUnlock()
	if err := p.backend.has(compute.DeviceNum(device)); err != nil {
		return nil, err
	}
	if err := checkDonated(p.donated, len(args)); err != nil {
		return nil, err
	}
	placed := make([]*tensors.Tensor, len(args))
	for i, arg := range args {
		t, ok := arg.(*tensors.Tensor)
		if ok && t != nil && t.IsOnAnyDevice() {
			placed[i] = t
			continue
		}
		if placed[i], err = p.backend.Put(arg, device); err != nil {
			return nil, fmt.Errorf("argument %d: %w", i, err)
		}
		if !p.donates(i) {
			defer placed[i].FinalizeAll()
		}
	}
	inputs, err := p.inputs(device, placed)
	if err != nil {
		return nil, err
	}
	outputs, g, err := p.exec.CallWithGraphOnDevice(compute.DeviceNum(device), inputs...)
	if err != nil {
		return nil, err
	}
	p.last.Store(executableOf(g))
	return outputs, nil
}

// inputs donates what is to be donated, after all checks.
func (p *Portable) inputs(device int, placed []*tensors.Tensor) ([]any, error) {
	all := passed{}
	own := make([]shapes.Shape, len(placed))
	for i, t := range placed {
		if err := all.check(&p.compiled, i, t); err != nil {
			return nil, fmt.Errorf("argument %d: %w", i, err)
		}
		at, err := t.Device()
		if b, e := t.Backend(); err != nil || e != nil || b != compute.Backend(p.backend) || int(at) != device {
			return nil, fmt.Errorf("argument %d is not on device %d of the program's backend: put it there", i, device)
		}
		own[i] = t.Shape()
	}
	if _, err := p.build(own...); err != nil {
		return nil, err
	}
	inputs := make([]any, len(placed))
	for i, t := range placed {
		var err error
		if inputs[i], err = p.give(i, t, device); err != nil {
			return nil, err
		}
	}
	return inputs, nil
}

// Memory returns what the program that was most recently run needs on its device. It returns an error before the first
// Call and after Close.
func (p *Portable) Memory() (Memory, error) { return p.memory() }

// Close waits until none of the compiled programs runs, and frees them.
func (p *Portable) Close() { p.close() }
