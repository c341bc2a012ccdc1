package xla

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/distributed"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"
)

// Program is a program that every device of a mesh runs on its own shards (SPMD: single program, multiple data). It is
// compiled when it is first called with a set of input shapes. Its methods may be called from several goroutines at
// once.
type Program struct {
	compiled
	mesh   *Mesh
	layout Shardings
	auto   bool // made by CompileAuto
}

// Shardings is the placements of a program's inputs and outputs on the mesh, in order. If a graph function takes or
// returns a slice, the last placement is repeated.
type Shardings struct {
	In, Out []Placement
	donated []int // inputs; see Donates
}

// In returns a layout with the placements of the inputs.
func In(placements ...Placement) Shardings { return Shardings{In: placements} }

// Gives adds the placements of the outputs.
func (l Shardings) Gives(placements ...Placement) Shardings {
	l.Out = placements
	return l
}

// Compile makes a program of a graph function. fn sees one device's shards: with x placed as Shard(0, "data") on a mesh
// with data=4, an x of shape [8, 3] is a node of shape [2, 3]. fn contains the collectives between the devices.
//
// fn may panic, as GoMLX's graph functions do; Call returns that as an error.
func Compile[F graph.ExecGraphFn](m *Mesh, fn F, layout Shardings) (*Program, error) {
	p, err := newProgram(m, fn, layout)
	if err != nil {
		return nil, err
	}
	p.exec.SPMD(m.DeviceMesh).WithDeviceAssignment(m.devices())
	return p, nil
}

// newProgram checks a layout and makes a program.
func newProgram(m *Mesh, fn any, layout Shardings) (*Program, error) {
	if m == nil {
		return nil, errors.New("the mesh is nil: make one with Backend.Mesh")
	}
	for _, p := range slices.Concat(layout.In, layout.Out) {
		if _, err := p.Spec(m.DeviceMesh); err != nil {
			return nil, err
		}
	}
	if len(layout.Out) == 0 {
		return nil, errors.New("the layout has no placement for the outputs: add for example .Gives(xla.Replicated())")
	}
	layout.In, layout.Out = slices.Clone(layout.In), slices.Clone(layout.Out)
	p := &Program{mesh: m, layout: layout}
	if err := compileLater(&p.compiled, m.backend, fn, slices.Clone(layout.donated)); err != nil {
		return nil, err
	}
	return p, nil
}

// Call runs the program. Each argument is a tensor that is placed on the mesh as the layout says, or a host value,
// which is placed for the call. Each output has one shard per device.
func (p *Program) Call(args ...any) (_ []*dtensor.Tensor, err error) {
	defer recoverGraph(&err)
	if err := p.use(); err != nil {
		return nil, err
	}
	defer p.closing.RUnlock()
	placed := make([]*dtensor.Tensor, len(args))
	for i, arg := range args {
		on, ours, err := p.place(i, arg)
		if err != nil {
			return nil, fmt.Errorf("argument %d: %w", i, err)
		}
		if ours && !p.donates(i) {
			defer on.FinalizeAll()
		}
		placed[i] = on
	}
	inputs, err := p.inputs(placed)
	if err != nil {
		return nil, err
	}
	// A mesh of one device needs its number.
	shards, g, err := p.exec.CallWithGraphOnDevice(compute.DeviceNum(p.mesh.first), inputs...)
	if err != nil {
		return nil, err
	}
	p.last.Store(executableOf(g))
	return p.assemble(shards)
}

// inputs returns each device's inputs, device by device. All checks come before anything is donated.
func (p *Program) inputs(placed []*dtensor.Tensor) ([]any, error) {
	if len(p.donated) > 0 {
		if err := checkDonated(p.donated, len(placed)); err != nil {
			return nil, err
		}
		if err := p.checkShards(placed); err != nil {
			return nil, err
		}
	}
	shards := make([]shapes.Shape, len(placed))
	for i, on := range placed {
		shards[i] = on.ShardShape()
	}
	g, err := p.compile(shards)
	if err != nil {
		return nil, err
	}
	if err := p.checkOutputs(g); err != nil {
		return nil, err
	}
	inputs := make([]any, p.mesh.NumDevices()*len(placed))
	for i, on := range placed {
		for device, shard := range on.Shards() {
			if inputs[device*len(placed)+i], err = p.give(i, shard, p.mesh.first+device); err != nil {
				return nil, err
			}
		}
	}
	return inputs, nil
}

// compile compiles the program for one device's shards.
func (p *Program) compile(shards []shapes.Shape) (*graph.Graph, error) {
	return p.build(slices.Repeat(shards, p.mesh.NumDevices())...) // device by device
}

func executableOf(g *graph.Graph) *executable { return g.Executable().(*executable) }

// checkOutputs checks that the outputs can be placed as the layout says.
func (p *Program) checkOutputs(g *graph.Graph) error {
	outputs := executableOf(g).Outputs()
	for i, shape := range outputs[:len(outputs)-len(g.LoggedNodes())] { // GoMLX appends logged nodes
		placement := placementOf(p.layout.Out, i)
		if placement.lastAxis() >= shape.Rank() {
			return fmt.Errorf("output %d: placement %v splits axis %d of a tensor of shape %v", i, placement,
				placement.lastAxis(), shape)
		}
		if !p.auto {
			continue
		}
		if _, err := p.mesh.shardShape(shape, placement); err != nil { // XLA would replicate it
			return fmt.Errorf("output %d: %w", i, err)
		}
	}
	return nil
}

// place places an argument as the layout says, and reports whether it made a new tensor for that.
func (p *Program) place(i int, arg any) (on *dtensor.Tensor, ours bool, err error) {
	if len(p.layout.In) == 0 {
		return nil, false, errors.New("the layout has no placement for inputs: start it with xla.In")
	}
	on, ok := arg.(*dtensor.Tensor)
	if !ok {
		on, err = p.mesh.Place(arg, placementOf(p.layout.In, i))
		return on, true, err
	}
	return on, false, p.checkPlaced(i, on)
}

// checkPlaced checks that a placed tensor is placed as the layout says for input i.
func (p *Program) checkPlaced(i int, on *dtensor.Tensor) error {
	if on == nil || on.Mesh() != p.mesh.DeviceMesh && on.Mesh().String() != p.mesh.String() {
		return fmt.Errorf("the tensor is on another mesh than the program's %v: place it on that", p.mesh)
	}
	placement := placementOf(p.layout.In, i)
	want, err := placement.fullSpec(p.mesh.DeviceMesh, max(on.Shape().Rank(), placement.lastAxis()+1))
	if err != nil {
		return err
	}
	axes := make([]distributed.AxisSpec, len(want.Axes)) // axes that a spec does not mention are replicated
	copy(axes, on.ShardingSpec().Axes)
	if !slices.EqualFunc(axes, want.Axes, slices.Equal[distributed.AxisSpec]) {
		return fmt.Errorf("the tensor is placed as %v, but the program needs %v: place it so, or change the layout",
			on.ShardingSpec(), want)
	}
	return nil
}

// Prepare compiles the program for the arguments without running it or copying them, for example to read Memory first.
func (p *Program) Prepare(args ...any) (err error) {
	defer recoverGraph(&err)
	if err := p.use(); err != nil {
		return err
	}
	defer p.closing.RUnlock()
	if len(args) > 0 && len(p.layout.In) == 0 {
		return errors.New("the layout has no placement for inputs: start it with xla.In")
	}
	shards := make([]shapes.Shape, len(args))
	for i, arg := range args {
		if shards[i], err = p.shard(i, arg); err != nil {
			return fmt.Errorf("argument %d: %w", i, err)
		}
	}
	g, err := p.compile(shards)
	if err != nil {
		return err
	}
	p.last.Store(executableOf(g))
	return nil
}

// shard returns the shape of argument i on one device.
func (p *Program) shard(i int, arg any) (shard shapes.Shape, err error) {
	if on, ok := arg.(*dtensor.Tensor); ok {
		if err = p.checkPlaced(i, on); err == nil {
			shard = on.ShardShape()
		}
		return shard, err
	}
	host, err := hostTensor(arg)
	if err != nil {
		return shard, err
	}
	return p.mesh.shardShape(host.Shape(), placementOf(p.layout.In, i))
}

// Close waits until none of the compiled programs runs, and frees them. Programs that are not closed are freed when
// they are garbage collected.
func (p *Program) Close() { p.close() }

// Memory returns what the program that was most recently compiled or run needs on each device. It returns an error
// before the first Call or Prepare, and after Close.
func (p *Program) Memory() (Memory, error) { return p.memory() }

// assemble joins the devices' outputs, which are in device order.
func (p *Program) assemble(shards []*tensors.Tensor) ([]*dtensor.Tensor, error) {
	devices := p.mesh.NumDevices()
	outputs := make([]*dtensor.Tensor, len(shards)/devices)
	for i := range outputs {
		spec, err := placementOf(p.layout.Out, i).Spec(p.mesh.DeviceMesh)
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

// placementOf returns the placement of value i; the last one is repeated.
func placementOf(placements []Placement, i int) Placement {
	return placements[min(i, len(placements)-1)]
}
