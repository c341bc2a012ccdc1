package compress

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/precision"
)

// Codec stores a tensor between its two uses. Those of this package are plain values to compare, and to use in any
// number of graphs and goroutines.
type Codec interface {
	// Name is what [Parse] would make the codec of, if it can.
	Name() string
	// Encode returns what is kept of x: arrays of unsigned integers, since compilers may hold floats in wider types,
	// and equally many for any x. It panics if x has no elements, or is of a type that the codec cannot keep.
	Encode(x *graph.Node) []*graph.Node
	// Decode returns a tensor of a shape from what is kept of one. It may panic if that is not so.
	Decode(kept []*graph.Node, like shapes.Shape) *graph.Node
	// Bytes is the memory of what is kept of a tensor of that shape.
	Bytes(shape shapes.Shape) int64
}

// Parse returns the codec of a name, in any case: "dense" ([Dense]); "fp16", "bf16", "fp10", "e4m3" and "e5m2"
// ([Float], where too large numbers become the largest, as in Gist); "int8:64" ([Int8] with groups of so many, and
// "int8" is that one); "csr:0.6" ([CSR] with that capacity). Another name, or one with a number that cannot be, is an
// error.
func Parse(name string) (Codec, error) {
	kind, setting, set := strings.Cut(strings.ToLower(name), ":")
	if kind == "dense" && !set {
		return Dense(), nil
	}
	for _, f := range formats() {
		if kind == f.Name && !set {
			f.Overflow = precision.ToLargest
			return Float(f)
		}
	}
	switch {
	case kind == "int8" && !set:
		return Int8(64)
	case kind == "int8":
		if group, err := strconv.Atoi(setting); err == nil {
			return Int8(group)
		}
	case kind == "csr":
		if capacity, err := strconv.ParseFloat(setting, 64); err == nil {
			return CSR(capacity)
		}
	}
	return nil, fmt.Errorf("compress: no codec %q: choose one of dense, fp16, bf16, fp10, e4m3, e5m2, int8, "+
		"int8:GROUP, csr:CAPACITY", name)
}

func formats() []precision.Format {
	return []precision.Format{precision.FP16, precision.BF16, FP10, precision.E4M3, precision.E5M2}
}

// Dense keeps all bits: the tensor as it is, which costs nothing if it is in memory anyway. It is for comparison.
func Dense() Codec { return dense{} }

type dense struct{}

func (dense) Name() string                       { return "dense" }
func (dense) Bytes(shape shapes.Shape) int64     { return int64(shape.Size()) * int64(shape.DType.Size()) }
func (dense) Encode(x *graph.Node) []*graph.Node { return []*graph.Node{precision.ToBits(keepable(x))} }
func (dense) Decode(kept []*graph.Node, like shapes.Shape) *graph.Node {
	return precision.FromBits(kept[0], like.DType)
}

// Sign keeps a bit of each element, and makes of it 1 for those that are at least 0, and -1 for others and NaN (Gist's
// "Binarize"). For a function whose gradient depends on no more, as [ReLU]'s, it is lossless. Parse does not know it,
// since for others it is nonsense.
func Sign() Codec { return sign{} }

type sign struct{}

func (sign) Name() string                   { return "sign" }
func (sign) Bytes(shape shapes.Shape) int64 { return packing(1).bytes(shape) }

func (sign) Encode(x *graph.Node) []*graph.Node {
	return []*graph.Node{packing(1).pack(graph.GreaterOrEqual(keepable(x), graph.ZerosLike(x)))}
}

func (sign) Decode(kept []*graph.Node, like shapes.Shape) *graph.Node {
	flags := graph.ConvertDType(packing(1).unpack(kept[0], like), like.DType)
	return graph.AddScalar(graph.MulScalar(flags, 2), -1)
}

// keepable returns x if it is of one of the types, any float if none is given, and has elements. Else it panics.
func keepable(x *graph.Node, types ...dtypes.DType) *graph.Node {
	switch {
	case !x.DType().IsFloat() || x.DType().Size() < 2 || len(types) > 0 && !slices.Contains(types, x.DType()):
		panic(fmt.Errorf("compress: a tensor of type %s cannot be kept by this codec: convert it to float32", x.DType()))
	case x.Shape().Size() == 0:
		panic(errors.New("compress: a tensor with no elements: there is nothing to keep"))
	}
	return x
}

// keepable32 returns x in float32, if it is that or of a half type. Else it panics.
func keepable32(x *graph.Node) *graph.Node {
	return graph.ConvertDType(keepable(x, dtypes.Float32, dtypes.Float16, dtypes.BFloat16), dtypes.Float32)
}
