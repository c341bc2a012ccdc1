package precision

import (
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
)

var unsigned = map[dtypes.DType]dtypes.DType{
	dtypes.Float64: dtypes.Uint64, dtypes.Float32: dtypes.Uint32, dtypes.Float16: dtypes.Uint16,
	dtypes.BFloat16: dtypes.Uint16,
}

// ToBits returns the bits of floats as unsigned integers, which compilers neither round nor store in wider types. It
// returns other types unchanged.
func ToBits(x *graph.Node) *graph.Node {
	if bits := BitsType(x.DType()); bits != x.DType() {
		return graph.Bitcast(x, bits)
	}
	return x
}

// BitsType is the type of the result of [ToBits] for a type.
func BitsType(of dtypes.DType) dtypes.DType {
	if bits, ok := unsigned[of]; ok {
		return bits
	}
	return of
}

// FromBits is the inverse of [ToBits], for the type that it had.
func FromBits(bits *graph.Node, dtype dtypes.DType) *graph.Node {
	if bits.DType() == dtype {
		return bits
	}
	return graph.Bitcast(bits, dtype)
}
