package xla

import (
	"fmt"
	"unsafe"

	"github.com/gomlx/gomlx/core/tensors"
)

// DevicePointer returns the address of a shard's memory on its device, for CUDA or C functions that run there
// (lib/native). On a CPU it is the address of View's first element; on a GPU the host may not read it. It is valid
// until the shard is finalized, donated or garbage collected: keep the shard alive while the address is in use.
//
// It returns an error if the shard is not on a device of this package, or the plugin provides no addresses.
func DevicePointer(shard *tensors.Tensor) (unsafe.Pointer, error) {
	backend, err := backendOf(shard)
	if err != nil {
		return nil, err
	}
	b, ours := backend.(*Backend)
	if !ours {
		return nil, fmt.Errorf("the tensor is on %s: place it on a device of xla.Open", backend.Name())
	}
	device, err := shard.Device()
	if err != nil {
		return nil, err
	}
	buffer, err := shard.Buffer(b, device)
	if err != nil {
		return nil, err
	}
	inner, err := b.inner(buffer)
	if err != nil {
		return nil, err
	}
	return pjrtBuffer(inner).UnsafePointer()
}
