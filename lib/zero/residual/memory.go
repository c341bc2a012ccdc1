package residual

import (
	"errors"
	"fmt"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/tensors"
)

// memory returns a tensor's memory, of a CPU device or of the host: no copy. It is valid until the tensor is finalized,
// donated or garbage.
func memory(t *tensors.Tensor) (bytes []byte, err error) {
	if err := t.CheckValid(); err != nil {
		return nil, err
	}
	if t.Size() == 0 {
		return nil, errors.New("the tensor has no elements: leave it out")
	}
	if t.IsOnAnyDevice() {
		backend, err := t.Backend()
		if err != nil {
			return nil, err
		}
		if !backend.HasSharedBuffers() {
			return nil, fmt.Errorf("the memory of %s is not the host's, and ranks share that alone: use CPU devices",
				backend.Name())
		}
		if !t.IsShared() {
			t.FinalizeLocal() // a copy on the host, which would not see what is written
		}
	}
	err = t.ConstFlatData(func(flat any) { bytes = dtypes.UnsafeByteSliceFromAny(flat) })
	return bytes, err
}
