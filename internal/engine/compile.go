package engine

import (
	"errors"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/xla"
)

// program is a compiled graph function on a rank's devices.
type program interface {
	Call(args ...any) ([]*dtensor.Tensor, error)
}

// layout is the placement of a program's inputs and outputs, and the inputs whose memory it may reuse.
type layout struct {
	in, out []xla.Placement
	donated []int
}

// devices are the devices of a rank, which compile and run its programs.
type devices struct {
	*Programs
	mesh  *xla.Mesh
	first int
}

// compile compiles a program. With one device per rank, equal keys mean the same program on all devices.
func (d *devices) compile(key string, fn func(in []*graph.Node) []*graph.Node, l layout) (program, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errors.New("engine: the programs are closed: start a new run")
	}
	if d.mesh.NumDevices() > 1 {
		p, err := xla.Compile(d.mesh, fn, xla.In(l.in...).Gives(l.out...).Donates(l.donated...))
		if err == nil {
			d.all = append(d.all, p)
		}
		return p, err
	}
	p := d.shared[key]
	if p == nil {
		var err error
		if p, err = xla.CompilePortable(d.backend, fn, l.donated...); err != nil {
			return nil, err
		}
		d.shared[key], d.all = p, append(d.all, p)
	}
	return onDevice{p, d}, nil
}

// onDevice is a program on one device.
type onDevice struct {
	*xla.Portable
	devices *devices
}

// Call implements [program].
func (p onDevice) Call(args ...any) ([]*dtensor.Tensor, error) {
	for i, a := range args {
		if t, ok := a.(*dtensor.Tensor); ok {
			args[i] = t.Shards()[0]
		}
	}
	out, err := p.Portable.Call(p.devices.first, args...)
	if err != nil {
		return nil, err
	}
	return p.devices.placed(out...)
}

// placed wraps arrays on a rank's one device.
func (d *devices) placed(list ...*tensors.Tensor) ([]*dtensor.Tensor, error) {
	spec, err := xla.Replicated().Spec(d.mesh.DeviceMesh)
	all := make([]*dtensor.Tensor, len(list))
	for i, t := range list {
		if err == nil {
			all[i], err = dtensor.NewTensor(spec, []*tensors.Tensor{t})
		}
	}
	return all, err
}

// place copies an array of the host to the devices.
func (d *devices) place(t *tensors.Tensor, on xla.Placement) (*dtensor.Tensor, error) {
	if d.mesh.NumDevices() > 1 {
		return d.mesh.Place(t, on)
	}
	one, err := d.backend.Put(t, d.first)
	if err != nil {
		return nil, err
	}
	all, err := d.placed(one)
	return all[0], err
}
