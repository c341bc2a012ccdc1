package engine

import (
	"errors"
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

// groupTypes are those that groups share.
var groupTypes = map[dtypes.DType]group.Type{dtypes.Float32: group.Float32, dtypes.Float64: group.Float64, dtypes.BFloat16: group.BFloat16,
	dtypes.Float16: group.Float16, dtypes.Int32: group.Int32, dtypes.Uint8: group.Uint8}

// memory is an array's memory as a group takes it: the device's own, or a copy on the host where that is not one piece of
// memory which the host reaches.
type memory struct {
	kind   group.Type
	buffer group.Buffer
	staged *tensors.Tensor // the copy; nil for the device's own
	on     *dtensor.Tensor // which must live as long
}

// memoryOf returns an array's memory, with what is in it. Values that the group does not share go as bytes where only copies
// are made.
func (r *Rank) memoryOf(on *dtensor.Tensor) (*memory, error) {
	m := &memory{on: on}
	if r.reachable() {
		var err error
		m.kind, m.buffer, err = deviceMemory(on.Shards()[0])
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
	kind, ok := groupTypes[host.DType()]
	if !ok {
		return notShared(host.DType())
	}
	m.kind, m.staged = kind, host
	return host.MutableBytes(func(data []byte) {
		m.buffer = group.Buffer{Data: unsafe.Pointer(unsafe.SliceData(data)), Len: host.Size()}
	})
}

// deviceMemory is the memory of an array on a device that the host reaches: no copy.
func deviceMemory(t *tensors.Tensor) (group.Type, group.Buffer, error) {
	switch t.DType() {
	case dtypes.Float32:
		return view[float32](t, group.Float32)
	case dtypes.Float64:
		return view[float64](t, group.Float64)
	case dtypes.BFloat16:
		return view[bfloat16.BFloat16](t, group.BFloat16)
	case dtypes.Float16:
		return view[float16.Float16](t, group.Float16)
	case dtypes.Int32:
		return view[int32](t, group.Int32)
	case dtypes.Uint8:
		return view[uint8](t, group.Uint8)
	}
	return 0, group.Buffer{}, notShared(t.DType())
}

func view[T float32 | float64 | bfloat16.BFloat16 | float16.Float16 | int32 | uint8](t *tensors.Tensor, as group.Type) (group.Type, group.Buffer, error) {
	values, err := xla.View[T](t)
	return as, group.Buffer{Data: unsafe.Pointer(unsafe.SliceData(values)), Len: len(values)}, err
}

func notShared(dtype dtypes.DType) error {
	return fmt.Errorf("engine: an array of %v: ranks share float32, float64, bfloat16, float16, int32 and uint8", dtype)
}

// swapped copies blocks of so many elements, which lie as rows of so many columns, so that they lie as columns of rows.
func swapped(from *tensors.Tensor, rows, columns int) (*tensors.Tensor, error) {
	to := tensors.FromShape(from.Shape())
	n := from.Size() / (rows * columns) * from.DType().Size()
	var own error
	err := from.ConstBytes(func(src []byte) {
		own = to.MutableBytes(func(dst []byte) {
			for i := range rows {
				for j := range columns {
					copy(dst[(j*rows+i)*n:][:n], src[(i*columns+j)*n:])
				}
			}
		})
	})
	return to, errors.Join(err, own)
}
