package checkpoint

import (
	"math"

	"github.com/gomlx/compute/dtypes"
)

// names are the names of the element types in a manifest: those of safetensors, and similar ones for the types that it
// lacks. Values in files are as in memory, little-endian like every machine that XLA runs on.
var names = map[dtypes.DType]string{
	dtypes.Bool: "BOOL",
	dtypes.Int8: "I8", dtypes.Int16: "I16", dtypes.Int32: "I32", dtypes.Int64: "I64",
	dtypes.Uint8: "U8", dtypes.Uint16: "U16", dtypes.Uint32: "U32", dtypes.Uint64: "U64",
	dtypes.Float16: "F16", dtypes.BFloat16: "BF16", dtypes.Float32: "F32", dtypes.Float64: "F64",
	dtypes.Complex64: "C64", dtypes.Complex128: "C128",
	dtypes.Int4: "I4", dtypes.Int2: "I2", dtypes.Int1: "I1",
	dtypes.Uint4: "U4", dtypes.Uint2: "U2", dtypes.Uint1: "U1",
}

// byName is the inverse of names.
var byName = func() map[string]dtypes.DType {
	types := map[string]dtypes.DType{}
	for dtype, name := range names {
		types[name] = dtype
	}
	return types
}()

// foreign reports whether safetensors lacks the type.
func foreign(dtype dtypes.DType) bool { return dtype.IsPacked() || dtype == dtypes.Complex128 }

// inFile returns the type and shape of an array in a data file: its own or, for types that safetensors lacks, bytes.
func inFile(dtype dtypes.DType, shape []int) (string, []int) {
	if foreign(dtype) {
		n, _ := byteSize(dtype, shape)
		return names[dtypes.Uint8], []int{int(n)}
	}
	return names[dtype], shape
}

// byteSize returns the size of an array, and false if a dimension is negative or the array is larger than any memory.
func byteSize(dtype dtypes.DType, shape []int) (int64, bool) {
	const most = math.MaxInt64 / 128 // so that the number of bits of the widest type, complex128, is one too
	elements := int64(1)
	for _, d := range shape {
		if d < 0 || d > 0 && elements > most/int64(d) {
			return 0, false
		}
		elements *= int64(d)
	}
	return (elements*int64(dtype.Bits()) + 7) / 8, true
}
