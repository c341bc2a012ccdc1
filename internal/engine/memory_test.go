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
		if err != nil {
			t.Fatal(err)
		}
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
		out, err := devicetest.Call(func(in []*graph.Node) []*graph.Node {
			return []*graph.Node{graph.Reshape(in[0], 6)}
		}, x)
		if err != nil {
			t.Fatal(err)
		}
		if got := bytesOf(out[0]); !slices.Equal(got, contents) {
			t.Errorf("%s: a program sees %v, want what was written: %v", dtype, got, contents)
		}
	}
}

func TestViewedRefused(t *testing.T) {
	on := func(value any) *tensors.Tensor {
		x, err := devicetest.One().Put(value, 0)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	gone := on([]float32{1})
	if err := gone.FinalizeAll(); err != nil {
		t.Fatal(err)
	}
	for want, x := range map[string]*tensors.Tensor{
		"a tensor of Int64: ranks can send float32": on([]int64{1}),
		"a tensor of Bool: ranks can send float32":  on([]bool{true}),
		"not on a device":                           tensors.FromValue([]float32{1}),
	} {
		if _, _, err := engine.Viewed(x); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, _, err := engine.Viewed(gone); err == nil {
		t.Error("what is gone has memory")
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
