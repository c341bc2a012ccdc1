package engine_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/engine"
)

func ExampleMicroBatches() {
	inputs := tensors.FromValue([][]int32{{0, 1}, {10, 11}, {20, 21}, {30, 31}})
	targets := tensors.FromValue([]float32{0, 1, 2, 3})
	parts, err := engine.MicroBatches(inputs, targets, 1, 2, 2) // the second of two ranks
	if err != nil {
		panic(err)
	}
	for _, p := range parts {
		fmt.Println("from row", p.Row, p.Inputs.Value(), p.Targets.Value())
	}
	// Output:
	// from row 2 [[20 21]] [2]
	// from row 3 [[30 31]] [3]
}

// numbered is a tensor whose bytes count up.
func numbered(dtype dtypes.DType, dims ...int) *tensors.Tensor {
	t := tensors.FromShape(shapes.Make(dtype, dims...))
	if err := t.MutableBytes(func(data []byte) {
		for i := range data {
			data[i] = byte(i % 119)
		}
	}); err != nil {
		panic(err)
	}
	return t
}

// bytesOf copies a tensor's contents.
func bytesOf(t *tensors.Tensor) (data []byte) {
	if err := t.ConstBytes(func(b []byte) { data = slices.Clone(b) }); err != nil {
		panic(err)
	}
	return data
}

// TestMicroBatches checks that all ranks' micro-batches, concatenated, are the batch.
func TestMicroBatches(t *testing.T) {
	for _, dtype := range []dtypes.DType{dtypes.Int32, dtypes.Bool, dtypes.Uint8, dtypes.Float64} {
		for _, tail := range [][]int{{}, {1}, {3}, {2, 5}, {0}} {
			for ranks := 1; ranks <= 4; ranks++ {
				for micro := 1; micro <= 3; micro++ {
					for size := 1; size <= 2; size++ { // examples of a micro-batch
						name := fmt.Sprintf("%s, each %v, %d ranks of %d micro-batches of %d", dtype, tail, ranks,
							micro, size)
						inputs := numbered(dtype, append([]int{ranks * micro * size}, tail...)...)
						targets := numbered(dtypes.Uint8, ranks*micro*size, 2)
						var in, out []byte
						row := 0
						for r := range ranks {
							parts, err := engine.MicroBatches(inputs, targets, r, ranks, micro)
							if err != nil || len(parts) != micro {
								t.Fatalf("%s: %d parts, %v", name, len(parts), err)
							}
							for _, p := range parts {
								want := append([]int{size}, tail...)
								if !slices.Equal(p.Inputs.Shape().Dimensions, want) || p.Inputs.DType() != dtype {
									t.Errorf("%s: inputs of shape %s", name, p.Inputs.Shape())
								}
								if int(p.Row) != row {
									t.Errorf("%s: begins at row %d, want %d", name, p.Row, row)
								}
								in, out, row = append(in, bytesOf(p.Inputs)...), append(out, bytesOf(p.Targets)...),
									row+size
							}
						}
						if !slices.Equal(in, bytesOf(inputs)) || !slices.Equal(out, bytesOf(targets)) {
							t.Errorf("%s: the parts together are not the batch", name)
						}
					}
				}
			}
		}
	}
}

// TestMicroBatchesAreCopies changes a batch after it was cut.
func TestMicroBatchesAreCopies(t *testing.T) {
	batch := tensors.FromValue([]int32{1, 2})
	parts, err := engine.MicroBatches(batch, batch, 1, 2, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := batch.MutableBytes(func(data []byte) { clear(data) }); err != nil {
		t.Fatal(err)
	}
	for _, part := range []*tensors.Tensor{parts[0].Inputs, parts[0].Targets} {
		if got := part.Value().([]int32); got[0] != 2 {
			t.Errorf("%v", got)
		}
	}
}

func TestMicroBatchesRefused(t *testing.T) {
	of := numbered
	good := of(dtypes.Int32, 6, 2)
	for _, c := range []struct {
		inputs, targets *tensors.Tensor
		ranks, micro    int
		want            string
	}{
		{nil, good, 1, 1, "the inputs or the targets are nil"},
		{good, nil, 1, 1, "the inputs or the targets are nil"},
		{good, of(dtypes.Int32, 5, 2), 1, 1, "give both the same number of examples"},
		{of(dtypes.Int32), of(dtypes.Int32), 1, 1, "give both the same number of examples"},
		{good, of(dtypes.Int32), 1, 1, "give both the same number of examples"},
		{of(dtypes.Int32, 0, 2), of(dtypes.Int32, 0, 2), 1, 1, "give both the same number of examples"},
		{good, good, 4, 1, "a batch of 6 examples is not divisible by 4 ranks with 1 micro-batches each: make it a " +
			"multiple of 4"},
		{good, good, 2, 2, "make it a multiple of 4"},
	} {
		parts, err := engine.MicroBatches(c.inputs, c.targets, 0, c.ranks, c.micro)
		if err == nil || !strings.HasPrefix(err.Error(), "engine: ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, %v; want %q", parts, err, c.want)
		}
	}
}
