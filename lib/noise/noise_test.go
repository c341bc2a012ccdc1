package noise_test

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/noise"
)

// plain is the hash in plain Go.
func plain(x uint32) uint32 {
	x += 0x9E3779B9
	x ^= x >> 16
	x *= 0x85EBCA6B
	x ^= x >> 13
	x *= 0xC2B2AE35
	return x ^ x>>16
}

func make32(t testing.TB, key, site, row uint32, dimensions ...int) []uint32 {
	t.Helper()
	out := must.Value(devicetest.Call(func(in []*graph.Node) []*graph.Node {
		return []*graph.Node{noise.Bits(in[0], site, in[1], dimensions...)}
	}, tensors.FromScalar(key), tensors.FromScalar(row)))
	return tensors.MustCopyFlatData[uint32](out[0])
}

func TestBits(t *testing.T) {
	for _, c := range []struct {
		key, site, row uint32
		dimensions     []int
	}{
		{0, 0, 0, []int{7}},
		{5, 2, 0, []int{3, 4, 5}},
		{1<<32 - 1, 9, 1 << 30, []int{4, 33}}, // the index goes round
		{8, 1, 3, nil},
	} {
		inRow := uint32(1)
		for _, d := range c.dimensions[min(1, len(c.dimensions)):] {
			inRow *= uint32(d)
		}
		for i, got := range make32(t, c.key, c.site, c.row, c.dimensions...) {
			if want := plain(plain(c.row*inRow+uint32(i)) ^ plain(plain(c.key)+c.site)); got != want {
				t.Fatalf("%+v, element %d: %#x, want %#x", c, i, got, want)
			}
		}
	}
}

// BitsAt equals Bits, for any indices of any axes in any order.
func TestBitsAt(t *testing.T) {
	const key, site = 77, 3
	whole := []int{3, 5, 4}
	want := make32(t, key, site, 0, whole...)
	for _, c := range [][3][]int32{
		{nil, nil, nil},
		{{2, 0}, nil, nil},
		{nil, {4, 1, 1}, nil},
		{nil, nil, {3, 2, 1, 0}},
		{{1}, {0, 2, 4}, {3, 1}},
	} {
		for _, signed := range []bool{true, false} {
			var indices [3][]int32 // of all axes
			args := []*tensors.Tensor{tensors.FromScalar(uint32(key))}
			for i, index := range c {
				if indices[i] = index; index == nil {
					for k := range whole[i] {
						indices[i] = append(indices[i], int32(k))
					}
					continue
				}
				if signed {
					args = append(args, tensors.FromValue(index))
					continue
				}
				of := make([]uint32, len(index))
				for k, at := range index {
					of[k] = uint32(at)
				}
				args = append(args, tensors.FromValue(of))
			}
			out := must.Value(devicetest.Call(func(in []*graph.Node) []*graph.Node {
				axes, given := noise.Full(whole), in[1:]
				for i := range c {
					if c[i] != nil {
						axes[i].Index, given = given[0], given[1:]
					}
				}
				return []*graph.Node{noise.BitsAt(in[0], site, axes...)}
			}, args...))
			var expected []uint32
			for _, i := range indices[0] {
				for _, j := range indices[1] {
					for _, k := range indices[2] {
						expected = append(expected, want[(int(i)*whole[1]+int(j))*whole[2]+int(k)])
					}
				}
			}
			if got := tensors.MustCopyFlatData[uint32](out[0]); !slices.Equal(got, expected) {
				t.Errorf("%v, signed %v: %x, want %x", c, signed, got, expected)
			}
		}
	}
}

// A key that is not a uint32 scalar, and an index that is not a vector of 32-bit integers, is an error.
func TestRefused(t *testing.T) {
	key, index := tensors.FromScalar(uint32(1)), tensors.FromValue([]uint32{1})
	for _, c := range []struct {
		key, index *tensors.Tensor
		want       string
	}{
		{index, index, "use a Uint32 scalar"},
		{key, tensors.FromValue(int32(1)), "axis 0"},
		{key, tensors.FromValue([]float32{1}), "axis 0"},
		{key, tensors.FromValue([]int64{1}), "axis 0"},
		{key, tensors.FromValue([][]int32{{1}}), "axis 0"},
	} {
		_, err := devicetest.Call(func(in []*graph.Node) []*graph.Node {
			return []*graph.Node{noise.BitsAt(in[0], 0, noise.Axis{Whole: 4, Index: in[1]})}
		}, c.key, c.index)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("key %s, index %s: error %v, want %q", c.key.Shape(), c.index.Shape(), err, c.want)
		}
	}
}

// Arrays that differ in one bit of the key, in the site or in the index have half of their bits in common: with 2¹⁷
// bits the standard deviation of that fraction is 0.0014.
func TestIndependence(t *testing.T) {
	const n = 4096
	first := make32(t, 1, 1, 0, n)
	for name, other := range map[string][]uint32{
		"key":  make32(t, 0, 1, 0, n),
		"high": make32(t, 1|1<<31, 1, 0, n),
		"site": make32(t, 1, 2, 0, n),
		"row":  make32(t, 1, 1, n, n),
		"next": slices.Concat(first[1:], first[:1]),
		"none": slices.Repeat([]uint32{0}, n),
	} {
		same := 0
		for i := range first {
			same += 32 - bits.OnesCount32(first[i]^other[i])
		}
		if share := float64(same) / (32 * n); share < 0.493 || share > 0.507 {
			t.Errorf("%s: %.4f of the bits are the same, want 0.5", name, share)
		}
	}
	seen := map[uint32]bool{}
	for _, b := range first {
		seen[b] = true
	}
	if len(seen) < n-20 { // about n²/2³³ = 0.002 pairs are expected to be equal
		t.Errorf("%d different values of %d", len(seen), n)
	}
}

// Keys of neighbouring seeds and steps are all different. The probability that two of 2¹¹ are equal by chance is
// 0.0005.
func TestKeys(t *testing.T) {
	steps := make([]int32, 256)
	for i := range steps {
		steps[i] = int32(i)
	}
	seen := map[uint32]bool{}
	for _, seed := range []uint32{0, 1, 2, 3, 50549, 244002641, 0x9E3779B1, 1<<32 - 1} {
		out := must.Value(devicetest.Call(func(in []*graph.Node) []*graph.Node {
			return []*graph.Node{noise.Key(seed, in[0])}
		}, tensors.FromValue(steps)))
		for i, key := range tensors.MustCopyFlatData[uint32](out[0]) {
			if want := plain(plain(plain(seed)) ^ plain(uint32(i))); key != want {
				t.Fatalf("seed %d, step %d: key %#x, want %#x", seed, i, key, want)
			}
			seen[key] = true
		}
	}
	if len(seen) != 8*256 {
		t.Errorf("%d different keys of %d", len(seen), 8*256)
	}
}

// A rank's rows are those of the full array.
func ExampleBits() {
	bits := func(row uint32, rows int) []uint32 {
		out := graph.MustExecOnce(devicetest.PureGo(), func(key, row *graph.Node) *graph.Node {
			return noise.Bits(key, 0, row, rows, 2)
		}, uint32(42), row)
		return tensors.MustCopyFlatData[uint32](out)
	}
	fmt.Println(bits(0, 4))
	fmt.Println(bits(2, 2))
	// Output:
	// [1044132224 1024466420 151254240 798029388 2763391317 3592423277 466843449 2195614403]
	// [2763391317 3592423277 466843449 2195614403]
}
