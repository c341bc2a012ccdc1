package engine

import (
	"errors"
	"sync"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/step"
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

// Programs are the compiled programs of a spec, shared by the ranks of a process. If ranks have one device each, a
// program runs on any of them.
type Programs struct {
	*common
	backend  *xla.Backend
	original []*step.Plan // before backward passes are split
	ranks    []*own       // by rank of the plans

	kinds chain.Kinds

	mu     sync.Mutex
	shared map[string]*xla.Portable
	host   *hostPrograms
	all    []interface{ Close() }
	closed bool
}

// New checks a spec, and derives each rank's part. Programs are compiled before the first step that needs them.
func New(backend *xla.Backend, s Spec) (*Programs, error) {
	if backend == nil {
		return nil, errors.New("the backend is nil: open one with xla.Open")
	}
	original := s.Plans
	if s.Apart {
		s.Plans = nil
		for _, p := range original {
			s.Plans = append(s.Plans, halved(p))
		}
	}
	c, err := newCommon(s)
	if err != nil {
		return nil, err
	}
	p := &Programs{original: original, common: c, backend: backend, shared: map[string]*xla.Portable{}}
	if c.hosts {
		if p.host, err = newHostPrograms(); err != nil {
			return nil, err
		}
		p.all = append(p.all, p.host)
	}
	for rank := range s.Plans[0].Ranks {
		p.ranks = append(p.ranks, c.newOwn(rank))
	}
	return p, nil
}

// Close frees the programs. None of them may run.
func (p *Programs) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, one := range p.all {
		one.Close()
	}
	p.all = nil
}
