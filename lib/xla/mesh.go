package xla

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/distributed"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"
)

// MeshAxis is a named axis of a mesh and its size.
type MeshAxis struct {
	Name string
	Size int
}

// Axis returns an axis of a mesh with a name and a size: Axis("data", 4).
func Axis(name string, size int) MeshAxis { return MeshAxis{name, size} }

// Mesh arranges consecutive devices of a backend along named axes. Device numbers are in row-major order: the last axis
// varies fastest. A mesh may have one device.
type Mesh struct {
	*distributed.DeviceMesh
	backend *Backend
	first   int // device
}

// Mesh arranges the backend's first devices, as many as the product of the axes' sizes. It returns an error for a size
// below 1, a name that is used twice or is not an identifier, no axes, or more devices than the backend has.
func (b *Backend) Mesh(axes ...MeshAxis) (*Mesh, error) { return b.MeshFrom(0, axes...) }

// MeshFrom is [Backend.Mesh] for the devices starting at number first, so that programs may run on several meshes at
// the same time. It returns an error if the backend does not have that device.
func (b *Backend) MeshFrom(first int, axes ...MeshAxis) (*Mesh, error) {
	if b.IsFinalized() {
		return nil, errors.New("the backend is closed: open another")
	}
	if first < 0 || first >= b.info.Devices {
		return nil, fmt.Errorf("a mesh from device %d on: choose a device from 0 to %d", first, b.info.Devices-1)
	}
	names, sizes, devices := make([]string, len(axes)), make([]int, len(axes)), 1
	for i, axis := range axes {
		if axis.Size < 1 {
			return nil, fmt.Errorf("mesh axis %q has size %d: choose at least 1", axis.Name, axis.Size)
		}
		names[i], sizes[i] = axis.Name, axis.Size
		if free := b.info.Devices - first; axis.Size > free/devices { // cannot overflow
			from := ""
			if first > 0 {
				from = fmt.Sprintf(" from number %d on", first)
			}
			return nil, fmt.Errorf("mesh %s needs more than the backend's %d devices%s: make it smaller, or open more "+
				"with xla.Devices", axesString(axes), free, from)
		}
		devices *= axis.Size
	}
	if devices > b.share {
		return nil, fmt.Errorf("%w: mesh %s is of one program, which needs devices of its own, and the backend's share "+
			"%d: make it smaller, or use ranks", ErrTooFew, axesString(axes), b.share)
	}
	mesh, err := distributed.NewDeviceMesh(sizes, names)
	if err != nil {
		return nil, fmt.Errorf("mesh %s: %w", axesString(axes), err)
	}
	return &Mesh{mesh, b, first}, nil
}

func axesString(axes []MeshAxis) string {
	parts := make([]string, len(axes))
	for i, axis := range axes {
		parts[i] = fmt.Sprintf("%s=%d", axis.Name, axis.Size)
	}
	return "(" + strings.Join(parts, ", ") + ")"
}

// Backend returns the backend that the mesh's devices belong to.
func (m *Mesh) Backend() *Backend { return m.backend }

// devices returns the mesh's device numbers, for GoMLX: without them, a program for a mesh of one device does not
// compile.
func (m *Mesh) devices() []compute.DeviceNum {
	all := make([]compute.DeviceNum, m.NumDevices())
	for i := range all {
		all[i] = compute.DeviceNum(m.first + i)
	}
	return all
}

// Placement says how a tensor is placed on a mesh: which of its axes are split over which mesh axes. Along mesh axes
// that it does not name, the tensor is replicated. The zero value replicates it over the full mesh.
type Placement struct {
	split map[int][]string // tensor axis → mesh axes, the major one first
}

// Replicated is the placement in which every device has the full tensor.
func Replicated() Placement { return Placement{} }

// Shard is the placement that splits a tensor's axis evenly over mesh axes: Shard(0, "data").
func Shard(tensorAxis int, meshAxes ...string) Placement {
	return Placement{}.And(tensorAxis, meshAxes...)
}

// And splits another axis: Shard(0, "data").And(1, "tensor"). Naming an axis again splits it further.
func (p Placement) And(tensorAxis int, meshAxes ...string) Placement {
	split := maps.Clone(p.split)
	if split == nil {
		split = map[int][]string{}
	}
	split[tensorAxis] = slices.Concat(split[tensorAxis], meshAxes)
	return Placement{split}
}

// String returns the placement as Go code.
func (p Placement) String() string {
	var calls []string
	for _, axis := range slices.Sorted(maps.Keys(p.split)) {
		call := fmt.Sprintf("And(%d", axis)
		for _, name := range p.split[axis] {
			call += fmt.Sprintf(", %q", name)
		}
		calls = append(calls, call+")")
	}
	if len(calls) == 0 {
		return "Replicated()"
	}
	calls[0] = strings.Replace(calls[0], "And", "Shard", 1)
	return strings.Join(calls, ".")
}

// maxRank limits the tensor axes of a placement.
const maxRank = 64

func (p Placement) lastAxis() int { return slices.Max(append(slices.Collect(maps.Keys(p.split)), -1)) }

// Spec returns the placement as GoMLX's sharding spec for the mesh. It returns an error for a mesh axis that does not
// exist or a negative tensor axis.
func (p Placement) Spec(m *distributed.DeviceMesh) (*distributed.ShardingSpec, error) {
	return p.fullSpec(m, p.lastAxis()+1)
}

// fullSpec is Spec with an entry for each axis of a tensor of a rank.
func (p Placement) fullSpec(m *distributed.DeviceMesh, rank int) (*distributed.ShardingSpec, error) {
	for axis := range p.split {
		if axis < 0 || axis >= maxRank {
			return nil, fmt.Errorf("placement splits tensor axis %d: choose one from 0 to %d", axis, maxRank-1)
		}
	}
	axes := make([]distributed.AxisSpec, rank)
	for axis, over := range p.split {
		for _, name := range over {
			if _, err := m.AxisSize(name); err != nil {
				return nil, fmt.Errorf("placement %v: the mesh has no axis %q: choose from %q", p, name, m.AxesNames())
			}
		}
		axes[axis] = over
	}
	return distributed.NewShardingSpec(m, axes...)
}

// Place splits a host value over the mesh and copies each shard to its device. The value is a *tensors.Tensor or
// anything that GoMLX converts to one. It returns an error if an axis does not divide evenly.
func (m *Mesh) Place(value any, p Placement) (*dtensor.Tensor, error) {
	spec, err := p.Spec(m.DeviceMesh)
	if err != nil {
		return nil, err
	}
	host, err := hostTensor(value)
	if err != nil {
		return nil, err
	}
	if _, err := m.shardShape(host.Shape(), p); err != nil {
		return nil, err
	}
	placed, err := dtensor.ShardTensor(spec, host)
	if err != nil {
		return nil, err
	}
	for i, shard := range placed.Shards() {
		// Memory that Go and the device share cannot be donated.
		if err := shard.MaterializeOnDevice(m.backend, false, compute.DeviceNum(m.first+i)); err != nil {
			return nil, fmt.Errorf("moving a shard to device %d: %w", m.first+i, err)
		}
		shard.FinalizeLocal()
	}
	return placed, nil
}

// shardShape returns the shape of each device's shard of a tensor. It returns an error that names an axis which the
// tensor does not have or which does not divide evenly.
func (m *Mesh) shardShape(full shapes.Shape, p Placement) (shapes.Shape, error) {
	spec, err := p.Spec(m.DeviceMesh)
	if err != nil {
		return shapes.Shape{}, err
	}
	if p.lastAxis() >= full.Rank() {
		return shapes.Shape{}, fmt.Errorf("placement %v splits axis %d of a tensor of shape %v: choose one of its axes",
			p, p.lastAxis(), full)
	}
	shard := full.Clone()
	for axis, over := range p.split {
		parts := spec.NumDevicesShardingAxis(axis)
		if shard.Dimensions[axis]%parts != 0 {
			return shapes.Shape{}, fmt.Errorf("shape %v is not divisible at axis %d: %d elements over %d "+
				"devices of mesh axes %q", full, axis, full.Dimensions[axis], parts, over)
		}
		shard.Dimensions[axis] /= parts
	}
	return shard, nil
}

// hostTensor converts a value to a tensor.
func hostTensor(value any) (*tensors.Tensor, error) {
	t, ok := value.(*tensors.Tensor)
	switch {
	case value == nil || ok && t == nil:
		return nil, errors.New("the value is nil: give a tensor, a number or a slice of numbers")
	case ok:
		return t, t.CheckValid()
	}
	return tensors.FromAnyValue(value)
}
