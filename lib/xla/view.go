package xla

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/dtypes/gotype"
	"github.com/gomlx/gomlx/core/tensors"
)

// View returns the memory of a shard on a CPU device as a slice, without a copy. The next program that gets the shard
// sees what is written to it. The slice is valid until the shard is finalized, donated or garbage collected: keep the
// shard alive while the slice is in use.
//
// It returns an error if T is not the shard's type, the shard is not on a device, or the device's memory is not the
// host's.
func View[T gotype.Supported](shard *tensors.Tensor) ([]T, error) {
	backend, err := backendOf(shard)
	if err != nil {
		return nil, err
	}
	if want := dtypes.FromGenericsType[T](); shard.DType() != want {
		return nil, fmt.Errorf("the tensor has type %v, but the view %v: use the tensor's type", shard.DType(), want)
	}
	if !backend.HasSharedBuffers() {
		return nil, fmt.Errorf("the memory of %s is not the host's: copy the tensor to the host and back",
			backend.Name())
	}
	if !shard.IsShared() {
		shard.FinalizeLocal() // a copy on the host would not see what is written
	}
	var view []T
	err = tensors.ConstFlatData(shard, func(flat []T) { view = flat })
	return view, err
}

// backendOf returns the backend of the device that a shard is on.
func backendOf(shard *tensors.Tensor) (compute.Backend, error) {
	if err := shard.CheckValid(); err != nil {
		return nil, err
	}
	if !shard.IsOnAnyDevice() {
		return nil, errors.New("the tensor is not on a device: place it on a mesh, or take a program's output")
	}
	return shard.Backend()
}

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
