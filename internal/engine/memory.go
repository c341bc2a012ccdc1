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

// memory is an array's memory in the form that a group takes: the device's own, or a copy on the host if that is not
// one contiguous range that the host can access.
type memory struct {
	kind   group.Type
	buffer group.Buffer
	staged *tensors.Tensor // the copy, or nil
	on     *dtensor.Tensor // the array, kept alive
}

// memoryOf returns an array's memory with its contents.
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

// reachable reports whether arrays on the rank's devices are one contiguous range of memory that the host can access.
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

// viewed returns the memory of a tensor that the host can access (see [xla.View]), without a copy. Keep the tensor
// alive while the group uses it.
func viewed(t *tensors.Tensor) (group.Type, group.Buffer, error) {
	kind, err := typeOf(t)
	if err != nil {
		return 0, group.Buffer{}, err
	}
	buffer, err := sendable[t.DType()].view(t)
	return kind, buffer, err
}

// typeOf returns the group's type for a tensor's.
func typeOf(t *tensors.Tensor) (group.Type, error) {
	of, ok := sendable[t.DType()]
	if !ok {
		return 0, fmt.Errorf("engine: a tensor of %v: ranks can send float32, float64, bfloat16, float16, int32 and "+
			"uint8", t.DType())
	}
	return of.kind, nil
}

// sendable are the types that ranks can send.
var sendable = map[dtypes.DType]struct {
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
