package residual_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/compute/dtypes/float16"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/zero/residual"
)

// gradients are a rank's, of several types and sizes, small and large.
func gradients(rank int) []*tensors.Tensor {
	random := rand.New(rand.NewPCG(5, uint64(rank)))
	number := func() float32 { return float32(random.NormFloat64() * math.Pow(2, float64(random.IntN(40)-25))) }
	var all []*tensors.Tensor
	for i, n := range []int{1, 100, 7, 33, 64, 2} {
		t := tensors.FromShape(shapes.Make([]dtypes.DType{dtypes.BFloat16, dtypes.Float32, dtypes.Float16}[i%3], n))
		t.MustMutableFlatData(func(flat any) {
			switch flat := flat.(type) {
			case []float32:
				for k := range flat {
					flat[k] = number()
				}
			case []bfloat16.BFloat16:
				for k := range flat {
					flat[k] = bfloat16.FromFloat32(number())
				}
			case []float16.Float16:
				for k := range flat {
					flat[k] = float16.FromFloat32(number())
				}
			}
		})
		all = append(all, t)
	}
	return all
}

const elements = 1 + 100 + 7 + 33 + 64 + 2

// expected are the gradients as the group itself reduces them, tensor by tensor.
func expected(ctx context.Context, g group.Group, op group.Op) (all [][]byte, err error) {
	for _, t := range gradients(g.Rank()) {
		t.MustMutableFlatData(func(flat any) {
			switch flat := flat.(type) {
			case []float32:
				err = group.AllReduce(ctx, g, flat, op)
			case []bfloat16.BFloat16:
				err = group.AllReduce(ctx, g, flat, op)
			case []float16.Float16:
				err = group.AllReduce(ctx, g, flat, op)
			}
		})
		if err != nil {
			return nil, err
		}
		all = append(all, bytesOf(t))
	}
	return all, nil
}

// Whatever the buffer's size, the results are those of the group, bit by bit. The messages are as many as the elements fill
// buffers, and the memory is that of all elements in float32 before, and the buffer's after.
func TestBuffer(t *testing.T) {
	const ranks = 3
	backend := devicetest.Open(t, ranks)
	for _, size := range []int{0, 1, 5, 64, elements, 1000} {
		for _, op := range []group.Op{group.Sum, group.Mean, group.Max} {
			err := group.Run(context.Background(), ranks, func(ctx context.Context, g group.Group) error {
				want, err := expected(ctx, g, op)
				if err != nil {
					return err
				}
				b, err := residual.NewBuffer(size * 4)
				if err != nil {
					return err
				}
				mine := gradients(g.Rank())
				for i, x := range mine {
					if i%2 == 1 { // some are the device's
						if mine[i], err = backend.Put(x, g.Rank()); err != nil {
							return err
						}
					}
				}
				if err := b.AllReduce(ctx, g, mine, op); err != nil {
					return err
				}
				for i, x := range mine {
					if !slices.Equal(bytesOf(x), want[i]) {
						t.Errorf("a buffer of %d elements, %v: tensor %d is\n%v, want\n%v", size, op, i, bytesOf(x), want[i])
					}
				}
				messages, bytes := 1, int64(elements*4)
				if size > 0 {
					messages, bytes = (elements+size-1)/size, int64(size*4)
				}
				if b.Messages() != messages || b.Bytes() != bytes {
					t.Errorf("a buffer of %d elements sends %d messages and has %d bytes, want %d and %d", size, b.Messages(), b.Bytes(), messages, bytes)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// What one rank gives to itself comes back with the same bits: every number of both half types, and NaN as NaN.
func TestBufferKeepsNumbers(t *testing.T) {
	for _, dtype := range []dtypes.DType{dtypes.BFloat16, dtypes.Float16} {
		x := tensors.FromShape(shapes.Make(dtype, 1<<16))
		x.MutableBytes(func(data []byte) {
			for i := range 1 << 16 {
				binary.NativeEndian.PutUint16(data[2*i:], uint16(i))
			}
		})
		err := group.Run(context.Background(), 1, func(ctx context.Context, g group.Group) error {
			b, err := residual.NewBuffer(4000)
			if err != nil {
				return err
			}
			return b.AllReduce(ctx, g, []*tensors.Tensor{x}, group.Sum)
		})
		if err != nil {
			t.Fatal(err)
		}
		exponent := map[dtypes.DType]int{dtypes.BFloat16: 0x7f80, dtypes.Float16: 0x7c00}[dtype]
		nan := func(bits int) bool { return bits&0x7fff > exponent }
		x.ConstBytes(func(data []byte) {
			for i := range 1 << 16 {
				if got := int(binary.NativeEndian.Uint16(data[2*i:])); got != i && !(nan(got) && nan(i)) {
					t.Fatalf("%v: bits %x became %x", dtype, i, got)
				}
			}
		})
	}
}

func TestBufferErrors(t *testing.T) {
	for _, bytes := range []int{-4, 3, 1025} {
		if _, err := residual.NewBuffer(bytes); err == nil || !strings.Contains(err.Error(), fmt.Sprint("a buffer of ", bytes, " bytes")) {
			t.Errorf("error %v", err)
		}
	}
	err := group.Run(context.Background(), 2, func(ctx context.Context, g group.Group) error {
		b, err := residual.NewBuffer(8)
		if err != nil {
			return err
		}
		good := tensors.FromValue([]float32{1, 2, 3})
		for want, bad := range map[string]*tensors.Tensor{
			"tensor 1 of 2 to all-reduce: Tensor is nil":             nil,
			"tensor 1 of 2 to all-reduce: it holds Int32":            tensors.FromValue([]int32{1}),
			"tensor 1 of 2 to all-reduce: the tensor has no element": tensors.FromShape(shapes.Make(dtypes.Float32, 0)),
		} {
			if err := b.AllReduce(ctx, g, []*tensors.Tensor{good, bad}, group.Sum); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %q", err, want)
			}
		}
		if b.Messages() != 0 || !slices.Equal(tensors.MustCopyFlatData[float32](good), []float32{1, 2, 3}) {
			t.Errorf("after errors %d messages were sent, and the good tensor is %v", b.Messages(), good)
		}
		if err := b.AllReduce(ctx, g, nil, group.Sum); err != nil || b.Messages() != 0 {
			t.Errorf("of nothing: error %v, %d messages", err, b.Messages())
		}
		// Ranks that disagree about the number of elements all fail, after what they had in common.
		uneven := tensors.FromShape(shapes.Make(dtypes.Float32, 3+g.Rank()))
		if err := b.AllReduce(ctx, g, []*tensors.Tensor{uneven}, group.Sum); err == nil || !strings.Contains(err.Error(), "elements 2 to") {
			t.Errorf("error %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func bytesOf(t *tensors.Tensor) (all []byte) {
	t.ConstBytes(func(data []byte) { all = slices.Clone(data) })
	return all
}
