package engine_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/engine"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/collective/group"
)

// TestViewed compares each type's memory with the tensor's contents, and checks that programs see what is written into
// it.
func TestViewed(t *testing.T) {
	for dtype, want := range map[dtypes.DType]group.Type{dtypes.Float32: group.Float32, dtypes.Float64: group.Float64,
		dtypes.BFloat16: group.BFloat16, dtypes.Float16: group.Float16, dtypes.Int32: group.Int32,
		dtypes.Uint8: group.Uint8} {
		host := numbered(dtype, 2, 3)
		contents := bytesOf(host)
		x, err := devicetest.One().Put(host, 0)
		must.Do(t, err)
		kind, memory, err := engine.Viewed(x)
		if err != nil || kind != want || memory.Len != 6 {
			t.Errorf("%s: %v, %d elements, %v; want %v", dtype, kind, memory.Len, err, want)
			continue
		}
		bytes := unsafe.Slice((*byte)(memory.Data), memory.Len*kind.Size())
		if !slices.Equal(bytes, contents) {
			t.Errorf("%s: its memory has %v, want %v", dtype, bytes, contents)
			continue
		}
		slices.Reverse(bytes)
		slices.Reverse(contents)
		out := must.Get(devicetest.Call(func(in []*graph.Node) []*graph.Node {
			return []*graph.Node{graph.Reshape(in[0], 6)}
		}, x))(t)
		if got := bytesOf(out[0]); !slices.Equal(got, contents) {
			t.Errorf("%s: a program sees %v, want what was written: %v", dtype, got, contents)
		}
	}
}

func TestViewedRefused(t *testing.T) {
	backend := devicetest.One()
	for want, value := range map[string]any{"a tensor of Int64: ranks can send float32": []int64{1},
		"a tensor of Bool: ranks can send float32": []bool{true}, "a tensor of InvalidDType": []float32{1}} {
		x := must.Get(backend.Put(value, 0))(t)
		if _, gone := value.([]float32); gone {
			must.Do(t, x.FinalizeAll())
		}
		if _, _, err := engine.Viewed(x); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, _, err := engine.Viewed(tensors.FromValue([]float32{1})); err == nil ||
		!strings.Contains(err.Error(), "not on a device") {
		t.Errorf("a tensor on the host: %v", err)
	}
}

// TestGatherRows gathers ranks' rows, and checks the error if a rank is missing.
func TestGatherRows(t *testing.T) {
	for _, gone := range []bool{false, true} {
		err := group.Run(t.Context(), 2, func(ctx context.Context, g group.Group) error {
			me := float32(g.Rank())
			if gone && g.Rank() == 1 {
				return nil
			}
			all, err := engine.GatherRows(ctx, g, tensors.FromValue([]float32{me, me + 10}), 2,
				shapes.Make(dtypes.Float32, 4))
			if err == nil && !slices.Equal(tensors.MustCopyFlatData[float32](all), []float32{0, 1, 10, 11}) {
				t.Errorf("%v", all)
			}
			return err
		})
		if (err != nil) != gone {
			t.Errorf("a rank is gone: %v; error %v", gone, err)
		}
	}
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

// TestMicroBatches checks that all ranks' micro-batches, concatenated, are the batch, in memory of their own.
func TestMicroBatches(t *testing.T) {
	for _, dtype := range []dtypes.DType{dtypes.Int32, dtypes.Bool, dtypes.Float64} {
		for n := range 4 * 3 * 2 * 3 {
			ranks, micro, size, tail := n%4+1, n/4%3+1, n/12%2+1, [][]int{{}, {3}, {2, 0}}[n/24]
			inputs := numbered(dtype, append([]int{ranks * micro * size}, tail...)...)
			targets := numbered(dtypes.Uint8, ranks*micro*size, 2)
			wantIn, wantOut, row := bytesOf(inputs), bytesOf(targets), 0
			var in, out []byte
			var all []engine.MicroBatch
			for r := range ranks {
				parts := must.Get(engine.MicroBatches(inputs, targets, r, ranks, 1, micro))(t)
				all = append(all, parts...)
			}
			for _, whole := range []*tensors.Tensor{inputs, targets} {
				must.Do(t, whole.MutableBytes(func(data []byte) { clear(data) }))
			}
			for _, p := range all {
				if dims := p.Inputs.Shape().Dimensions; !slices.Equal(dims, append([]int{size}, tail...)) ||
					p.Inputs.DType() != dtype || int(p.Row) != row {
					t.Errorf("inputs of shape %s from row %d, want %d from %d", p.Inputs.Shape(), p.Row, size, row)
				}
				in, out, row = append(in, bytesOf(p.Inputs)...), append(out, bytesOf(p.Targets)...), row+size
			}
			if len(all) != ranks*micro || !slices.Equal(in, wantIn) || !slices.Equal(out, wantOut) {
				t.Errorf("%d ranks of %d micro-batches: the parts together are not the batch", ranks, micro)
			}
		}
	}
	good, scalar, none := numbered(dtypes.Int32, 6, 2), numbered(dtypes.Int32), numbered(dtypes.Int32, 0, 2)
	for _, c := range []struct {
		inputs, targets *tensors.Tensor
		ranks, micro    int
		want            string
	}{
		{nil, good, 1, 1, "the inputs or the targets are nil"}, {good, nil, 1, 1, "the inputs or the targets are nil"},
		{good, numbered(dtypes.Int32, 5, 2), 1, 1, "give both the same number of examples"},
		{scalar, scalar, 1, 1, "give both the same number"}, {good, scalar, 1, 1, "give both the same number"},
		{none, none, 1, 1, "give both the same number of examples"},
		{good, good, 4, 1, "a batch of 6 examples for 4 data-parallel devices with 1 micro-batches each: make it a " +
			"multiple of 4"},
		{good, good, 2, 2, "make it a multiple of 4"},
	} {
		parts, err := engine.MicroBatches(c.inputs, c.targets, 0, c.ranks, 1, c.micro)
		if err == nil || !strings.HasPrefix(err.Error(), "engine: ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, %v; want %q", parts, err, c.want)
		}
	}
}
