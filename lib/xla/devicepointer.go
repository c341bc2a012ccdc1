package xla

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/gomlx/gomlx/core/tensors"
)

// DevicePointer returns the address of a shard's memory on its device, for functions that CUDA or C runs there
// (lib/native): on a CPU that of View's first element, on a GPU one that the host may not read. It is valid until the
// shard is finalized, donated or garbage: keep the shard alive while the address is in use.
//
// It returns an error if the shard is not on a device of this package's, or if the plugin gives no addresses.
func DevicePointer(shard *tensors.Tensor) (unsafe.Pointer, error) {
	if err := shard.CheckValid(); err != nil {
		return nil, err
	}
	if !shard.IsOnAnyDevice() {
		return nil, errors.New("the tensor is not on a device: place it on a mesh, or take a program's output")
	}
	backend, err := shard.Backend()
	if err != nil {
		return nil, err
	}
	b, ours := backend.(*Backend)
	if !ours {
		return nil, fmt.Errorf("the tensor is on %s: only xla.Open's devices have addresses", backend.Name())
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
