package xla

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"
)

// Program is one graph that every device of a mesh runs on its own shards (SPMD:
// single program, multiple data). It is compiled when it first meets a set of
// input shapes.
type Program struct {
	mesh    *Mesh
	in, out []Placement
	exec    *graph.Exec
	last    atomic.Pointer[executable] // the one most recently compiled or run
}

// Layout says how the inputs and outputs of a program lie on the mesh, one
// placement each in their order. Where a graph function takes or returns a slice,
// the last placement stands for the rest.
type Layout struct {
	In, Out []Placement
}

// In starts a layout with the placements of the inputs.
func In(placements ...Placement) Layout { return Layout{In: placements} }

// Out starts a layout with the placements of the outputs, for a function without inputs.
func Out(placements ...Placement) Layout { return Layout{Out: placements} }

// Gives adds the placements of the outputs.
func (l Layout) Gives(placements ...Placement) Layout {
	l.Out = placements
	return l
}

// Compile makes a program of a graph function. fn sees one device's shards: with
// x placed as Shard(0, "data") on a mesh with data=4, an x of shape [8, 3] is a
// node of shape [2, 3]. Collectives between the devices are written in fn.
//
// fn may panic, as GoMLX's graph functions do; Call returns that as an error.
func Compile[F graph.ExecGraphFn](m *Mesh, fn F, layout Layout) (*Program, error) {
	for _, p := range append(append([]Placement{}, layout.In...), layout.Out...) {
		if _, err := p.Spec(m); err != nil {
			return nil, err
		}
	}
	if len(layout.Out) == 0 {
		return nil, errors.New("layout has no placement for the outputs: add .Gives(xla.Replicated()) or what fits")
	}
	exec, err := graph.NewExec(m.backend, fn)
	if err != nil {
		return nil, err
	}
	exec.SPMD(m.DeviceMesh).WithDeviceAssignment(m.devices())
	return &Program{mesh: m, in: layout.In, out: layout.Out, exec: exec}, nil
}

// Call runs the program. Each argument is a tensor already placed on the mesh, or
// a host value, which is placed first. Each output holds one shard a device.
func (p *Program) Call(args ...any) (_ []*dtensor.Tensor, err error) {
	defer recoverGraph(&err)
	placed, err := p.place(args)
	if err != nil {
		return nil, err
	}
	shards, g, err := p.exec.CallWithGraph(placed...)
	if err != nil {
		return nil, err
	}
	p.last.Store(g.Executable().(*executable))
	return p.assemble(shards)
}

// Prepare compiles the program for the arguments without running it, so that
// Memory can be asked first.
func (p *Program) Prepare(args ...any) (err error) {
	defer recoverGraph(&err)
	placed, err := p.place(args)
	if err != nil {
		return err
	}
	local := make([]shapes.Shape, 0, len(placed)*p.mesh.NumDevices()) // device by device
	for range p.mesh.NumDevices() {
		for _, arg := range placed {
			local = append(local, arg.(*dtensor.Tensor).ShardShape())
		}
	}
	g, err := p.exec.Compile(local...)
	if err != nil {
		return err
	}
	p.last.Store(g.Executable().(*executable))
	return nil
}

// Memory returns what the program most recently compiled or run needs on each
// device. It returns an error before the first Call or Prepare.
func (p *Program) Memory() (Memory, error) {
	e := p.last.Load()
	if e == nil {
		return Memory{}, errors.New("the program is not compiled yet: call Prepare or Call first")
	}
	return e.memory(), nil
}

// place puts every argument that is not on the mesh yet where the layout wants it.
func (p *Program) place(args []any) ([]any, error) {
	if len(args) > 0 && len(p.in) == 0 {
		return nil, fmt.Errorf("%d arguments given, but the layout has no placement for inputs: start it with xla.In", len(args))
	}
	placed := make([]any, len(args))
	for i, arg := range args {
		if on, ok := arg.(*dtensor.Tensor); ok && on.Mesh() == p.mesh.DeviceMesh {
			placed[i] = on
			continue
		}
		on, err := p.mesh.Place(arg, placementOf(p.in, i))
		if err != nil {
			return nil, fmt.Errorf("argument %d: %w", i, err)
		}
		placed[i] = on
	}
	return placed, nil
}

// assemble joins the devices' outputs, which come device by device.
func (p *Program) assemble(shards []*tensors.Tensor) ([]*dtensor.Tensor, error) {
	devices := p.mesh.NumDevices()
	outputs := make([]*dtensor.Tensor, len(shards)/devices)
	for i := range outputs {
		spec, err := placementOf(p.out, i).Spec(p.mesh)
		if err != nil {
			return nil, err
		}
		own := make([]*tensors.Tensor, devices)
		for device := range own {
			own[device] = shards[device*len(outputs)+i]
		}
		if outputs[i], err = dtensor.NewTensor(spec, own); err != nil {
			return nil, fmt.Errorf("output %d: %w", i, err)
		}
	}
	return outputs, nil
}

// recoverGraph turns the panic of a graph function into an error. GoMLX does so
// only where an error value was thrown.
func recoverGraph(err *error) {
	if thrown := recover(); thrown != nil {
		*err = fmt.Errorf("building the graph: %v", thrown)
	}
}

// placementOf returns the placement of value i; the last one stands for the rest.
func placementOf(placements []Placement, i int) Placement {
	return placements[min(i, len(placements)-1)]
}
