package rank_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/collective/group"
)

func ExampleMemory() {
	x, err := devicetest.One().Put([]float32{1, 2, 3}, 0)
	if err != nil {
		panic(err)
	}
	kind, memory, err := rank.Memory(x)
	if err != nil {
		panic(err)
	}
	bytes := rank.Bytes(kind, memory)
	clear(bytes[4:8]) // the second number
	fmt.Println(kind, memory.Len, len(bytes), tensors.MustCopyFlatData[float32](x))
	// Output: float32 3 12 [1 0 3]
}

// TestMemory holds each type's memory against the tensor's own contents, and has programs see what is written into it.
func TestMemory(t *testing.T) {
	for dtype, want := range map[dtypes.DType]group.Type{dtypes.Float32: group.Float32, dtypes.Float64: group.Float64,
		dtypes.BFloat16: group.BFloat16, dtypes.Float16: group.Float16, dtypes.Int32: group.Int32, dtypes.Uint8: group.Uint8} {
		host := numbered(dtype, 2, 3)
		contents := bytesOf(host)
		x, err := devicetest.One().Put(host, 0)
		if err != nil {
			t.Fatal(err)
		}
		kind, memory, err := rank.Memory(x)
		if err != nil || kind != want || memory.Len != 6 {
			t.Errorf("%s: %v, %d elements, %v; want %v", dtype, kind, memory.Len, err, want)
			continue
		}
		bytes := rank.Bytes(kind, memory)
		if !slices.Equal(bytes, contents) {
			t.Errorf("%s: its memory has %v, want %v", dtype, bytes, contents)
			continue
		}
		slices.Reverse(bytes)
		slices.Reverse(contents)
		out, err := devicetest.Call(func(in []*graph.Node) []*graph.Node { return []*graph.Node{graph.Reshape(in[0], 6)} }, x)
		if err != nil {
			t.Fatal(err)
		}
		if got := bytesOf(out[0]); !slices.Equal(got, contents) {
			t.Errorf("%s: a program sees %v, want what was written: %v", dtype, got, contents)
		}
	}
}

func TestMemoryRefused(t *testing.T) {
	on := func(value any) *tensors.Tensor {
		x, err := devicetest.One().Put(value, 0)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	gone := on([]float32{1})
	if err := rank.Free(nil, gone, gone); err != nil { // nothing, and what is gone, is free
		t.Error(err)
	}
	for want, x := range map[string]*tensors.Tensor{
		"a tensor of Int64: ranks share float32": on([]int64{1}),
		"a tensor of Bool: ranks share float32":  on([]bool{true}),
		"not on a device":                        tensors.FromValue([]float32{1}),
	} {
		if _, _, err := rank.Memory(x); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, _, err := rank.Memory(gone); err == nil {
		t.Error("what is gone has memory")
	}
}

// TestFree frees at once.
func TestFree(t *testing.T) {
	before := devicetest.One().Live()[0]
	x, err := devicetest.One().Put(make([]float32, 1000), 0)
	if err != nil {
		t.Fatal(err)
	}
	if now := devicetest.One().Live()[0]; now.Bytes != before.Bytes+4000 {
		t.Errorf("%v, before %v", now, before)
	}
	if err := rank.Free(x); err != nil {
		t.Error(err)
	}
	if now := devicetest.One().Live()[0]; now != before {
		t.Errorf("%v, before %v", now, before)
	}
}

// TestEnded has the group of a rank whose context has ended fail, and that of no other.
func TestEnded(t *testing.T) {
	groups, err := group.New(2)
	if err != nil {
		t.Fatal(err)
	}
	if err := rank.Ended(t.Context(), groups[0]); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for r, err := range []error{rank.Ended(ctx, groups[1]), group.Barrier(t.Context(), groups[0])} {
		if failure, ok := err.(*group.Failure); !ok || failure.Rank != 1 {
			t.Errorf("call %d: %v; want a failure of rank 1", r, err)
		}
	}
}
