package compress_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/compress"
)

// sameBits reports whether all bits are the same, also of NaNs.
func sameBits(a, b []float32) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return false
		}
	}
	return true
}

func TestEncodeSparse(t *testing.T) {
	for _, n := range []int{0, 1, 2, 255, 256, 257, 511, 512, 513, 5000} {
		for i, density := range []float64{0, 0.01, 0.3, 0.7, 0.79, 0.81, 1} {
			values := sparse(uint64(n+i), n, density)
			data := compress.EncodeSparse(values)
			got, err := compress.DecodeSparse(data)
			if err != nil || !sameBits(got, values) {
				t.Errorf("%d values of density %g: error %v, or other values", n, density, err)
			}
			// The sizes by counting: 9 bytes, 4 per row, 5 per value; or 1 byte, and 4 per value.
			some := 0
			for _, x := range values {
				if math.Float32bits(x) != 0 {
					some++
				}
			}
			if want := min(1+4*n, 9+4*((n+255)/256)+5*some); len(data) != want {
				t.Errorf("%d values of which %d are not 0: %d bytes, want %d", n, some, len(data), want)
			}
		}
	}
}

// The bytes written out by hand.
func TestSparseFormat(t *testing.T) {
	values := make([]float32, 258)
	values[2], values[257] = float32(math.Copysign(0, -1)), 1
	want := []byte{1, 2, 1, 0, 0, 0, 0, 0, 0 /* 258 */, 1, 0, 0, 0, 2, 0, 0, 0 /* ends */, 2, 1 /* columns */, 0, 0, 0,
		0x80, 0, 0, 0x80, 0x3f}
	if got := compress.EncodeSparse(values); !bytes.Equal(got, want) {
		t.Errorf("%v is not %v", got, want)
	}
	if got, want := compress.EncodeSparse([]float32{1}), []byte{0, 0, 0, 0x80, 0x3f}; !bytes.Equal(got, want) {
		t.Errorf("%v is not %v", got, want)
	}
}

func TestDamage(t *testing.T) {
	values := sparse(1, 600, 0.1)
	good := compress.EncodeSparse(values)
	if good[0] != 1 {
		t.Fatal("the values are not kept as sparse rows")
	}
	change := func(at int, with ...byte) []byte {
		return append(append(bytes.Clone(good[:at]), with...), good[at+len(with):]...)
	}
	some := int(binary.LittleEndian.Uint32(good[9+8:]))
	columns := 9 + 12
	for name, data := range map[string][]byte{
		"nothing":            nil,
		"another kind":       change(0, 2),
		"a dense one's kind": change(0, 0),
		"no head":            good[:8],
		"one byte less":      good[:len(good)-1],
		"one byte more":      append(bytes.Clone(good), 0),
		"many values":        change(1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
		"fewer values":       change(1, 0x01, 0x02),
		"an end beyond":      change(9, 0xff),
		"an end before":      change(9+4, 0),
		"the last end":       change(9+8, byte(some+1)),
		"equal columns":      change(columns, good[columns+1]),
		"a value of 0":       change(columns+some, 0, 0, 0, 0),
		"no rows, values":    append([]byte{1, 0, 0, 0, 0, 0, 0, 0, 0}, 1),
	} {
		if got, err := compress.DecodeSparse(data); err == nil || !strings.HasPrefix(err.Error(), "compress: ") {
			t.Errorf("%s: %d values, error %v", name, len(got), err)
		}
	}
}

// From the density BreakEven on, CSR needs at least the memory of the elements.
func TestBreakEven(t *testing.T) {
	for _, dtype := range []dtypes.DType{dtypes.Float32, dtypes.BFloat16} {
		shape := shapes.Make(dtype, 1024, 256)
		at := compress.BreakEven(dtype.Size())
		for _, side := range []float64{-0.001, 0.001} {
			codec := must.Get(compress.CSR(at + side))(t)
			if smaller := codec.Bytes(shape) < compress.Dense().Bytes(shape); smaller != (side < 0) {
				t.Errorf("%s: %d bytes at a capacity of %g, %d dense", dtype, codec.Bytes(shape), at+side,
					compress.Dense().Bytes(shape))
			}
		}
	}
}

func FuzzDecodeSparse(f *testing.F) {
	f.Add([]byte{})
	f.Add(compress.EncodeSparse([]float32{1, 2, 3}))
	f.Add(compress.EncodeSparse(sparse(1, 300, 0.05)))
	f.Add(compress.EncodeSparse(make([]float32, 600)))
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		values, err := compress.DecodeSparse(data)
		if err != nil {
			return
		}
		if 4*len(values) > 256*len(data) {
			t.Errorf("%d values of %d bytes", len(values), len(data))
		}
		again, err := compress.DecodeSparse(compress.EncodeSparse(values))
		if err != nil || !sameBits(again, values) {
			t.Errorf("encoded again: error %v, or other values", err)
		}
	})
}
