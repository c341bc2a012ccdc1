package engine

import (
	"fmt"
	"unsafe"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/compute/dtypes/float16"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/xla"
)

// memory is an array's memory as a group takes it: the device's own, or a copy on the host where that is not one piece
// of memory which the host reaches.
type memory struct {
	kind   group.Type
	buffer group.Buffer
	staged *tensors.Tensor // the copy; nil for the device's own
	on     *dtensor.Tensor // which must live as long
}

// memoryOf returns an array's memory, with what is in it. Values that the group does not share go as bytes where only
// copies are made.
func (r *Rank) memoryOf(on *dtensor.Tensor) (*memory, error) {
	m := &memory{on: on}
	if r.reachable() {
		var err error
		m.kind, m.buffer, err = viewed(on.Shards()[0])
		return m, err
	}
	host, err := merged(on)
	if err != nil {
		return nil, err
	}
	return m, m.stage(host)
}

// reachable says whether what lies on the rank's devices is one piece of memory that the host reaches.
func (r *Rank) reachable() bool {
	return r.mesh.NumDevices() == 1 && !r.Staged && r.backend.HasSharedBuffers()
}

func (m *memory) stage(host *tensors.Tensor) error {
	kind, err := typeOf(host)
	if err != nil {
		return err
	}
	m.kind, m.staged = kind, host
	return host.MutableBytes(func(data []byte) {
		m.buffer = group.Buffer{Data: unsafe.Pointer(unsafe.SliceData(data)), Len: host.Size()}
	})
}

// viewed is the memory of a tensor on a device that the host reaches (see [xla.View]), as a group takes it: no copy.
// Keep the tensor alive while the group has it.
func viewed(t *tensors.Tensor) (group.Type, group.Buffer, error) {
	kind, err := typeOf(t)
	if err != nil {
		return 0, group.Buffer{}, err
	}
	buffer, err := shared[t.DType()].view(t)
	return kind, buffer, err
}

// typeOf is what groups call a tensor's type.
func typeOf(t *tensors.Tensor) (group.Type, error) {
	of, ok := shared[t.DType()]
	if !ok {
		return 0, fmt.Errorf("engine: a tensor of %v: ranks share float32, float64, bfloat16, float16, int32 and uint8",
			t.DType())
	}
	return of.kind, nil
}

// shared are the types that ranks share.
var shared = map[dtypes.DType]struct {
	kind group.Type
	view func(t *tensors.Tensor) (group.Buffer, error)
}{
	dtypes.Float32:  {group.Float32, view[float32]},
	dtypes.Float64:  {group.Float64, view[float64]},
	dtypes.BFloat16: {group.BFloat16, view[bfloat16.BFloat16]},
	dtypes.Float16:  {group.Float16, view[float16.Float16]},
	dtypes.Int32:    {group.Int32, view[int32]},
	dtypes.Uint8:    {group.Uint8, view[uint8]},
}

func view[T group.Element](t *tensors.Tensor) (group.Buffer, error) {
	values, err := xla.View[T](t)
	return group.Buffer{Data: unsafe.Pointer(unsafe.SliceData(values)), Len: len(values)}, err
}
