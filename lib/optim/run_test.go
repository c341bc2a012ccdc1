package optim_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/params"
)

// call runs a graph function in plain Go, without the time for compiling.
func call(fn func([]*graph.Node) []*graph.Node, args ...*tensors.Tensor) ([]*tensors.Tensor, error) {
	return devicetest.CallOn(devicetest.PureGo(), fn, args...)
}

func mustCall(t *testing.T, fn func([]*graph.Node) []*graph.Node, args ...*tensors.Tensor) []*tensors.Tensor {
	t.Helper()
	out, err := call(fn, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// refused checks an error's text, or that there is no error for "".
func refused(t *testing.T, what any, err error, want string) {
	t.Helper()
	if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("%+v: error %v, want %q", what, err, want)
	}
}

// trees of ranks 0 to 3, with sizes that few numbers divide.
var smallTree = params.Tree{
	params.New("scalar", dtypes.Float32),
	params.New("vector", dtypes.Float32, 7),
	params.New("matrix", dtypes.Float32, 5, 6),
	params.New("row", dtypes.Float32, 1, 4),
	params.New("stack", dtypes.Float32, 3, 2, 5),
}

// normal returns random tensors for a tree. Their scales differ between elements by up to 10⁴.
func normal(tree params.Tree, random *rand.Rand) []*tensors.Tensor {
	values := make([]*tensors.Tensor, len(tree))
	for i, s := range tree {
		flat := make([]float32, s.Size())
		for k := range flat {
			flat[k] = float32(random.NormFloat64() * math.Pow(10, float64(k%5-3)))
		}
		values[i] = tensors.FromFlatDataAndDimensions(flat, s.Shape.Dimensions...)
	}
	return values
}

func zeros(t *testing.T, tree params.Tree) []*tensors.Tensor {
	t.Helper()
	values, err := params.Zeros(tree)
	if err != nil {
		t.Fatal(err)
	}
	return values
}

// floats returns a tensor's elements, which may also be codes.
func floats(t *testing.T, x *tensors.Tensor) []float64 {
	t.Helper()
	switch x.DType() {
	case dtypes.Uint8:
		return widen(tensors.MustCopyFlatData[uint8](x))
	case dtypes.Float64:
		return tensors.MustCopyFlatData[float64](x)
	case dtypes.Float32:
		return widen(tensors.MustCopyFlatData[float32](x))
	}
	t.Fatalf("a tensor of shape %s", x.Shape())
	return nil
}

func widen[T uint8 | float32](x []T) []float64 {
	wide := make([]float64, len(x))
	for i := range x {
		wide[i] = float64(x[i])
	}
	return wide
}

// local returns copies that belong to no backend.
func local(t *testing.T, values []*tensors.Tensor) []*tensors.Tensor {
	t.Helper()
	copies := make([]*tensors.Tensor, len(values))
	for i, x := range values {
		var err error
		if copies[i], err = x.LocalClone(); err != nil {
			t.Fatal(err)
		}
	}
	return copies
}
