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

// Codec encodes a tensor that the forward pass saves for the backward pass. The codecs of this package are values that
// can be compared, and used in any number of graphs and goroutines.
type Codec interface {
	// Name is the text that [Parse] takes for the codec, if it can.
	Name() string
	// Encode returns the codes of x: arrays of unsigned integers, since compilers may store floats in wider types, and
	// the same number of arrays for any x. It panics if x has no elements or a type that the codec does not support.
	Encode(x *graph.Node) []*graph.Node
	// Decode returns a tensor of the given shape from the codes of one of that shape.
	Decode(codes []*graph.Node, like shapes.Shape) *graph.Node
	// Bytes returns the memory of the codes of a tensor of that shape.
	Bytes(shape shapes.Shape) int64
}

// Parse returns the codec with a name, in upper or lower case: "dense" ([Dense]); "fp16", "bf16", "fp10", "e4m3" and
// "e5m2" ([Float], saturating as in Gist); "int8:64" ([Int8] with groups of 64, which is also "int8"); "csr:0.6" ([CSR]
// with that capacity). Other names, and invalid numbers, are errors.
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

// Dense stores all bits: the tensor as it is, which costs nothing if it is in memory anyway. It is for comparison.
func Dense() Codec { return dense{} }

type dense struct{}

func (dense) Name() string                       { return "dense" }
func (dense) Bytes(shape shapes.Shape) int64     { return int64(shape.Size()) * int64(shape.DType.Size()) }
func (dense) Encode(x *graph.Node) []*graph.Node { return []*graph.Node{precision.ToBits(keepable(x))} }
func (dense) Decode(codes []*graph.Node, like shapes.Shape) *graph.Node {
	return precision.FromBits(codes[0], like.DType)
}

// Sign stores one bit per element, which decodes to 1 for elements that are at least 0, and to -1 for others and NaN
// (Gist's "Binarize"). It is lossless for a function whose gradient needs no more, such as [ReLU]. Parse does not know
// it, since for other functions it is wrong.
func Sign() Codec { return sign{} }

type sign struct{}

func (sign) Name() string                   { return "sign" }
func (sign) Bytes(shape shapes.Shape) int64 { return packing(1).bytes(shape) }

func (sign) Encode(x *graph.Node) []*graph.Node {
	return []*graph.Node{packing(1).pack(graph.GreaterOrEqual(keepable(x), graph.ZerosLike(x)))}
}

func (sign) Decode(codes []*graph.Node, like shapes.Shape) *graph.Node {
	flags := graph.ConvertDType(packing(1).unpack(codes[0], like), like.DType)
	return graph.AddScalar(graph.MulScalar(flags, 2), -1)
}

// keepable returns x if it has elements and one of the types, or any float type if none is given; else it panics.
func keepable(x *graph.Node, types ...dtypes.DType) *graph.Node {
	switch {
	case !x.DType().IsFloat() || x.DType().Size() < 2 || len(types) > 0 && !slices.Contains(types, x.DType()):
		panic(fmt.Errorf("compress: this codec does not support type %s: convert the tensor to float32", x.DType()))
	case x.Shape().Size() == 0:
		panic(errors.New("compress: a tensor without elements: give at least one"))
	}
	return x
}

// keepable32 returns x in float32, if it is float32 or a half type; else it panics.
func keepable32(x *graph.Node) *graph.Node {
	return graph.ConvertDType(keepable(x, dtypes.Float32, dtypes.Float16, dtypes.BFloat16), dtypes.Float32)
}
