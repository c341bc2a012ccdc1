package compress_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/compress"
	"github.com/shardbook/shardbook/lib/precision"
)

// roundTrip encodes and decodes values.
func roundTrip(codec compress.Codec) func(nodes) nodes {
	return func(in nodes) nodes {
		return nodes{codec.Decode(codec.Encode(in[0]), in[0].Shape())}
	}
}

// many are special numbers and random ones of all sizes.
func many(seed uint64, n int) []float32 {
	r, values := rand.New(rand.NewPCG(seed, 2)), special()
	for len(values) < n {
		values = append(values, float32(r.NormFloat64()*math.Exp2(float64(r.IntN(60)-30))))
	}
	return values[:n]
}

// Float equals precision's own encoding on the host, which rounds in float64.
func TestFloat(t *testing.T) {
	values := many(1, 301)
	formats := []precision.Format{precision.FP16, precision.BF16, compress.FP10, precision.E4M3, precision.E5M2,
		{Name: "toNaN", Exponent: 4, Mantissa: 3, NoInfinities: true, Overflow: precision.ToNaN},
		{Name: "two words", Exponent: 6, Mantissa: 5}}
	for _, on := range platforms() {
		if on.name == "XLA" {
			formats = []precision.Format{precision.FP16, precision.BF16, compress.FP10, precision.E4M3}
		}
		got := call(t, on.backend, func(in nodes) (out nodes) {
			for _, f := range formats {
				codec := must.Get(compress.Float(f))(t)
				out = append(out, roundTrip(codec)(in)...)
			}
			return out
		}, tensor(values, 7, 43))
		for i, f := range formats {
			want := make([]float32, len(values))
			for j, x := range values {
				want[j] = float32(f.Decode(f.Encode(float64(x))))
			}
			same(t, on.name+", "+f.Name, got[i], want)
		}
	}
}

// int8s is Int8 one number after another.
func int8s(values []float32, row, group int) []float32 {
	out := make([]float32, len(values))
	for i := range values {
		start := i - i%row + i%row/group*group
		var largest float32
		for _, x := range values[start:min(start+group, i-i%row+row)] {
			if a := float32(math.Abs(float64(x))); !(a <= largest) {
				largest = a
			}
			if x != x {
				largest = float32(math.Inf(1))
			}
		}
		scale := largest * (float32(1) / 127)
		share := math.RoundToEven(float64(values[i]/scale)) + 0 // no -0
		if share != share {
			share = 0
		}
		out[i] = float32(min(max(share, -127), 127)) * scale
	}
	return out
}

func TestInt8(t *testing.T) {
	values := many(2, 300) // and beyond float32's normal numbers XLA would compute with 0
	for i, x := range values {
		if math.Abs(float64(x)) < 1e-30 {
			values[i] = 0
		}
	}
	for _, on := range platforms() {
		for _, c := range []struct{ row, group int }{{60, 7}, {300, 64}, {1, 1}, {60, math.MaxInt / 2}} {
			codec := must.Get(compress.Int8(c.group))(t)
			got := call(t, on.backend, roundTrip(codec), tensor(values, len(values)/c.row, c.row))[0]
			want := int8s(values, c.row, c.group)
			for i := range want { // ±Inf of either sign by the same token: what matters is that it is not finite
				if !finite(want[i]) && !finite(got[i]) {
					got[i], want[i] = 0, 0
				}
			}
			same(t, fmt.Sprintf("%s, groups of %d in rows of %d", on.name, c.group, c.row), got, want)
		}
	}
}

func finite(x float32) bool { return math.Abs(float64(x)) <= math.MaxFloat32 }

// sparse are values of which a fraction is not +0.
func sparse(seed uint64, n int, density float64) []float32 {
	r := rand.New(rand.NewPCG(seed, 5))
	values, some := make([]float32, n), special()
	for i := range values {
		if r.Float64() < density {
			values[i] = some[r.IntN(len(some))]
		}
	}
	return values
}

// CSR preserves every bit up to its capacity, and beyond returns NaN.
func TestCSR(t *testing.T) {
	for _, on := range platforms() {
		sizes := []int{1, 3, 255, 256, 257, 1000}
		if on.name == "XLA" {
			sizes = []int{1, 1000}
		}
		for seed, n := range sizes {
			exec := must.Get(graph.NewExec(on.backend, func(x *node) *node {
				codec := parse(t, "csr:0.5")
				return graph.Bitcast(codec.Decode(codec.Encode(x), x.Shape()), dtypes.Uint32)
			}))(t)
			for _, density := range []float64{0, 0.1, 0.4, 0.5, 0.6, 1} {
				values, some := sparse(uint64(seed), n, density), 0
				for _, x := range values {
					if math.Float32bits(x) != 0 {
						some++
					}
				}
				out := must.Get(exec.Call(tensor(values, 1, n)))(t)
				for i, got := range tensors.MustCopyFlatData[uint32](out[0]) {
					if fits := 2*some <= n+1; fits && got != math.Float32bits(values[i]) || !fits &&
						math.Float32frombits(got) == math.Float32frombits(got) {
						t.Fatalf("%s: %d of %d with room for half: number %d is %#x, was %#x", on.name, some, n, i, got,
							math.Float32bits(values[i]))
					}
				}
			}
			exec.Finalize()
		}
	}
}

// Bytes is the size of the codes, for any shape and type; codes are unsigned integers, and their number does not depend
// on the shape.
func TestBytes(t *testing.T) {
	codecs := []compress.Codec{compress.Sign()}
	for _, name := range append(platforms()[0].codecs, "int8:128", fmt.Sprint("int8:", math.MaxInt), "csr:0.3") {
		codecs = append(codecs, parse(t, name))
	}
	for _, dims := range [][]int{{}, {1}, {5}, {3, 0x101}, {2, 3, 32}, {2, 2, 2, 33}} {
		for _, dtype := range []dtypes.DType{dtypes.Float32, dtypes.BFloat16, dtypes.Float16} {
			shape := shapes.Make(dtype, dims...)
			for _, codec := range codecs {
				var bytes int64
				call(t, devicetest.PureGo(), func(in nodes) nodes {
					for _, kept := range codec.Encode(graph.ConvertDType(in[0], dtype)) {
						if !kept.DType().IsUnsigned() {
							t.Errorf("%s keeps %s", codec.Name(), kept.Shape())
						}
						bytes += int64(kept.Shape().Size()) * int64(kept.DType().Size())
					}
					return in
				}, tensors.FromShape(shapes.Make(dtypes.Float32, dims...)))
				if want := codec.Bytes(shape); bytes != want {
					t.Errorf("%s keeps %d bytes of %s, and says %d", codec.Name(), bytes, shape, want)
				}
			}
		}
	}
	// By hand: 3 rows of 257 elements.
	for name, want := range map[string]int64{
		"dense": 4 * 771, "fp16": 3 * 129 * 4, "fp10": 3 * 86 * 4, "e4m3": 3 * 65 * 4, "int8": 3 * (65 + 5) * 4,
		"csr:0.5": 386*4 + 97*4 + 4*4,
	} {
		if got := parse(t, name).Bytes(shapes.Make(dtypes.Float32, 3, 257)); got != want {
			t.Errorf("%s: %d bytes, want %d", name, got, want)
		}
	}
	if got, want := compress.Sign().Bytes(shapes.Make(dtypes.Float32, 3, 257)), int64(3*9*4); got != want {
		t.Errorf("sign: %d bytes, want %d", got, want)
	}
}

func TestParse(t *testing.T) {
	for name, want := range map[string]string{
		"dense": "dense", "BF16": "bf16", "fp16": "fp16", "fp10": "fp10", "e4m3": "e4m3", "e5m2": "e5m2",
		"int8": "int8:64", "int8:128": "int8:128", "csr:0.6": "csr:0.6", "CSR:1": "csr:1",
	} {
		c := parse(t, name)
		if c.Name() != want {
			t.Errorf("%q is %q, want %q", name, c.Name(), want)
		}
		if again := parse(t, c.Name()); again != c {
			t.Errorf("%q parsed again is %v, want %v", name, again, c)
		}
	}
	for _, name := range []string{"", "fp32", "tf32", "sign", "dense:1", "fp16:2", "int8:", "int8:0", "int8:-1",
		"int8:x",
		"csr", "csr:", "csr:0", "csr:1.01", "csr:NaN", "csr:-1"} {
		if c, err := compress.Parse(name); err == nil || !strings.HasPrefix(err.Error(), "compress: ") {
			t.Errorf("%q is %v, error %v", name, c, err)
		}
	}
}

func TestErrors(t *testing.T) {
	for _, f := range []precision.Format{precision.FP32, precision.TF32, precision.INT8, {},
		{Name: "x", Exponent: 1, Mantissa: 4}} {
		if _, err := compress.Float(f); err == nil || !strings.HasPrefix(err.Error(), "compress: ") {
			t.Errorf("Float(%v): error %v", f, err)
		}
	}
	for _, c := range []struct {
		codec string
		x     *tensors.Tensor
		want  string
	}{
		{"bf16", tensors.FromValue([]float64{1}), "type Float64"},
		{"int8", tensors.FromValue([]float64{1}), "type Float64"},
		{"csr:1", tensors.FromValue([]int32{1}), "type Int32"},
		{"dense", tensors.FromValue([]bool{true}), "type Bool"},
		{"csr:1", tensors.FromShape(shapes.Make(dtypes.Float32, 3, 0)), "without elements"},
		{"e4m3", tensors.FromShape(shapes.Make(dtypes.Float32, 0)), "without elements"},
	} {
		_, err := devicetest.CallOn(devicetest.PureGo(), func(in nodes) nodes {
			return parse(t, c.codec).Encode(in[0])
		}, c.x)
		if err == nil || !strings.Contains(err.Error(), "compress: ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s of %s: error %v, want %q", c.codec, c.x.Shape(), err, c.want)
		}
	}
}
