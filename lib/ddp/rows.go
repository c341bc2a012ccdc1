package ddp

import (
	"fmt"

	"github.com/gomlx/compute/dtypes/gotype"
	"github.com/gomlx/gomlx/core/tensors"
)

// rowsOf copies rows of a tensor: size of them, from first on.
func rowsOf(t *tensors.Tensor, first, size int) (part *tensors.Tensor, err error) {
	dims := append([]int{size}, t.Shape().Dimensions[1:]...)
	each := t.Shape().Size() / t.Shape().Dim(0)
	e := t.ConstFlatData(func(flat any) {
		switch values := flat.(type) {
		case []int32:
			part = cut(values, first*each, size*each, dims)
		case []int64:
			part = cut(values, first*each, size*each, dims)
		case []uint8:
			part = cut(values, first*each, size*each, dims)
		case []float32:
			part = cut(values, first*each, size*each, dims)
		default:
			err = fmt.Errorf("ddp: a batch of %s: give it as int32, int64, uint8 or float32", t.DType())
		}
	})
	if e != nil {
		return nil, e
	}
	return part, err
}

func cut[T gotype.Supported](values []T, at, size int, dims []int) *tensors.Tensor {
	return tensors.FromFlatDataAndDimensions(append([]T{}, values[at:at+size]...), dims...)
}
