package group

import (
	"fmt"

	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/compute/dtypes/float16"
)

var (
	typeNames = [...]string{"float32", "float64", "bfloat16", "float16", "int32", "int64", "uint8"}
	typeSizes = [...]int{4, 8, 2, 2, 4, 8, 1}
	opNames   = [...]string{"sum", "mean", "product", "max", "min"}
	kindNames = [...]string{
		"send", "receive", "broadcast", "reduce", "all-reduce", "gather", "all-gather",
		"scatter", "reduce-scatter", "all-to-all", "barrier", "split",
	}
)

// String is the type's name, such as "float32".
func (t Type) String() string { return name("type", typeNames[:], int(t)) }

// Size is the size of an element in bytes, 0 for an unknown type.
func (t Type) Size() int {
	if int(t) >= len(typeSizes) {
		return 0
	}
	return typeSizes[t]
}

// String is the reduction's name, such as "sum".
func (o ReduceOp) String() string { return name("op", opNames[:], int(o)) }

// String is the operation's name, such as "all-reduce".
func (k Kind) String() string { return name("kind", kindNames[:], int(k)) }

func name(what string, names []string, i int) string {
	if i >= len(names) {
		return fmt.Sprintf("%s(%d)", what, i)
	}
	return names[i]
}

// TypeOf is the Type of T.
func TypeOf[T Element]() Type {
	switch any(*new(T)).(type) {
	case float32:
		return Float32
	case float64:
		return Float64
	case bfloat16.BFloat16:
		return BFloat16
	case float16.Float16:
		return Float16
	case int32:
		return Int32
	case int64:
		return Int64
	default:
		return Uint8
	}
}
