package xla_test

import (
	"fmt"
	"testing"

	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/xla"
)

func merge(t testing.TB, x any) *tensors.Tensor {
	t.Helper()
	whole := must(x.(*dtensor.Tensor).Merge())(t)
	return whole
}

func TestMoveBetweenDevices(t *testing.T) {
	b := devicetest.OpenOwn(t, 3)
	x := tensors.FromFlatDataAndDimensions([]float32{1, 2, 3}, 3)
	for _, device := range []xla.DeviceNum{0, 2, 1, 1, 0} {
		if err := x.MaterializeOnDevice(b, false, device); err != nil {
			t.Fatalf("moving to device %d: %v", device, err)
		}
		if at, err := x.Device(); err != nil || at != device {
			t.Errorf("moved to device %d, lies on %d (error %v)", device, at, err)
		}
		live := b.Live()
		for d, l := range live {
			want := 0
			if d == int(device) {
				want = 1
			}
			if l.Buffers != want {
				t.Errorf("moved to device %d: live buffers %v", device, live)
			}
		}
	}
	if got := fmt.Sprint(x.Value()); got != "[1 2 3]" {
		t.Errorf("after the moves: %s", got)
	}
	if err := x.MaterializeOnDevice(b, false, 7); err == nil {
		t.Error("moving to device 7 of 3: no error")
	}
}

// clone returns a copy on the host: a tensor given to a program moves to its device.
func clone(t testing.TB, x *tensors.Tensor) *tensors.Tensor {
	t.Helper()
	c := must(x.LocalClone())(t)
	return c
}

// must returns the value of a call, and fails the test on an error.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		check(t, err)
		return v
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
