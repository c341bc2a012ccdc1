package rank

import (
	"fmt"
	"unsafe"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/compute/dtypes/float16"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/xla"
)

// Memory returns a tensor's memory, which lies on a device that the host reaches (see [xla.View]), as a group takes it: no
// copy. Keep the tensor alive while the group has it. A type that groups do not share is an error.
func Memory(t *tensors.Tensor) (group.Type, group.Buffer, error) {
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

// Bytes is a buffer's memory.
func Bytes(kind group.Type, b group.Buffer) []byte {
	return unsafe.Slice((*byte)(b.Data), b.Len*kind.Size())
}

// TypeOf is what groups call a tensor's type. It is an error as in [Memory].
func TypeOf(t *tensors.Tensor) (group.Type, error) {
	kind, ok := map[dtypes.DType]group.Type{dtypes.Float32: group.Float32, dtypes.Float64: group.Float64, dtypes.BFloat16: group.BFloat16,
		dtypes.Float16: group.Float16, dtypes.Int32: group.Int32, dtypes.Uint8: group.Uint8}[t.DType()]
	if !ok {
		return 0, notShared(t.DType())
	}
	return kind, nil
}

func notShared(dtype dtypes.DType) error {
	return fmt.Errorf("rank: a tensor of %v: ranks share float32, float64, bfloat16, float16, int32 and uint8", dtype)
}
