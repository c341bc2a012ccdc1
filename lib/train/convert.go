package train

import (
	"fmt"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/compute/dtypes/float16"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/precision"
)

// Convert rounds a float32 host tensor to nearest even in another floating-point type: BFloat16 or Float16. It returns
// tensors of other types unchanged.
func Convert(t *tensors.Tensor, to dtypes.DType) (*tensors.Tensor, error) {
	if t.DType() != dtypes.Float32 || to == dtypes.Float32 {
		return t, nil
	}
	values, err := tensors.CopyFlatData[float32](t)
	if err != nil {
		return nil, err
	}
	dims := t.Shape().Dimensions
	switch to {
	case dtypes.BFloat16:
		return tensors.FromFlatDataAndDimensions(encoded(values, precision.BF16, bfloat16.FromBits), dims...), nil
	case dtypes.Float16:
		return tensors.FromFlatDataAndDimensions(encoded(values, precision.FP16, float16.FromBits), dims...), nil
	}
	return nil, fmt.Errorf("train: parameters of type %s: choose Float32, BFloat16 or Float16", to)
}

func encoded[T any](values []float32, f precision.Format, fromBits func(uint16) T) []T {
	out := make([]T, len(values))
	for i, v := range values {
		out[i] = fromBits(uint16(f.Encode(float64(v))))
	}
	return out
}
