package residual_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/zero/residual"
)

// Tensors lie in one buffer instead of one each, which is where it was however often they are written, and each stays
// what it was as its neighbours change. XLA needs no copy of the region to write into it.
func TestRegion(t *testing.T) {
	for _, dtype := range []dtypes.DType{dtypes.Float32, dtypes.BFloat16, dtypes.Float16} {
		backend := devicetest.Open(t, 2)
		of := []shapes.Shape{shapes.Make(dtype, 8, 6), shapes.Make(dtype, 7, 5), shapes.Make(dtype), shapes.Make(dtype, 8, 6)}
		r, err := residual.NewRegion(backend, 1, of...)
		if err != nil {
			t.Fatal(err)
		}
		rounded := int64(0)
		for _, s := range of {
			rounded += (s.ByteSize() + 63) / 64 * 64
		}
		if want := (xla.Live{Buffers: 1, Bytes: rounded}); r.Bytes() != want.Bytes || backend.Live()[1] != want {
			t.Errorf("%v: the region has %d bytes and the device %+v, want %+v", dtype, r.Bytes(), backend.Live()[1], want)
		}
		address := r.Address()
		want := make([]*tensors.Tensor, len(of))
		for step, i := range []int{0, 1, 2, 3, 1, 0, 3, 2, 2} {
			want[i] = tensors.FromShape(of[i])
			if dtype == dtypes.Float32 {
				tensors.MustMutableFlatData(want[i], func(flat []float32) {
					for k := range flat {
						flat[k] = float32(step*100 + k)
					}
				})
			} else {
				want[i].MutableBytes(func(data []byte) {
					for k := range data {
						data[k] = byte(k%2*60 + step) // normal numbers
					}
				})
			}
			x, err := backend.Put(want[i], 1)
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Put(i, x); err != nil {
				t.Fatal(err)
			}
			if err := x.FinalizeAll(); err != nil {
				t.Fatal(err)
			}
			if r.Address() != address {
				t.Errorf("%v: the region moved from %x to %x", dtype, address, r.Address())
			}
			for k, w := range want {
				if w == nil {
					w = tensors.FromShape(of[k])
				}
				got, err := r.Get(k)
				if err != nil {
					t.Fatal(err)
				}
				if !got.Shape().Equal(of[k]) || !slices.Equal(bytesOf(got), bytesOf(w)) {
					t.Errorf("%v, step %d: place %d has %v, want %v", dtype, step, k, got, w)
				}
				if err := got.FinalizeAll(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if temporary := r.Temporary(t); temporary >= of[0].ByteSize() {
			t.Errorf("%v: writing into the region needs %d bytes more", dtype, temporary)
		}
		if live := backend.Live()[1]; live.Buffers != 1 {
			t.Errorf("%v: the device has %+v, want the region alone", dtype, live)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		if live := backend.Live()[1]; live.Buffers != 0 {
			t.Errorf("%v: the device still has %+v", dtype, live)
		}
	}
}

func TestRegionErrors(t *testing.T) {
	backend := devicetest.One()
	row := shapes.Make(dtypes.Float32, 3)
	for want, make := range map[string]func() (*residual.Region, error){
		"no backend":     func() (*residual.Region, error) { return residual.NewRegion(nil, 0, row) },
		"or for nothing": func() (*residual.Region, error) { return residual.NewRegion(backend, 0) },
		"device 1 of 1":  func() (*residual.Region, error) { return residual.NewRegion(backend, 1, row) },
		"shape 1 of a region is (In": func() (*residual.Region, error) {
			return residual.NewRegion(backend, 0, row, shapes.Make(dtypes.Int32, 3))
		},
		"shape 0 of a region is (Bo": func() (*residual.Region, error) { return residual.NewRegion(backend, 0, shapes.Make(dtypes.Bool, 3)) },
		"shape 0 of a region is (Fl": func() (*residual.Region, error) {
			return residual.NewRegion(backend, 0, shapes.Make(dtypes.Float32, 0))
		},
	} {
		if _, err := make(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	r, err := residual.NewRegion(backend, 0, row)
	if err != nil {
		t.Fatal(err)
	}
	for want, do := range map[string]func() error{
		"place 1 of a region of 1":  func() error { return r.Put(1, tensors.FromValue([]float32{1, 2, 3})) },
		"place -1 of a region of 1": func() error { _, err := r.Get(-1); return err },
		"shape (Float32)[2] for":    func() error { return r.Put(0, tensors.FromValue([]float32{1, 2})) },
		"Tensor is nil":             func() error { return r.Put(0, nil) },
	} {
		if err := do(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if err := r.Put(0, tensors.FromValue([]float32{1, 2, 3})); err != nil { // of the host
		t.Error(err)
	}
	for range 2 {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := r.Get(0); err == nil || !strings.Contains(err.Error(), "the region is closed") {
		t.Errorf("error %v", err)
	}
}
