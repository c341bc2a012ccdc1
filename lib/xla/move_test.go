package xla_test

import (
	"fmt"
	"testing"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/xla"
)

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
		for d, l := range b.Live() {
			if (l.Buffers == 1) != (d == int(device)) {
				t.Errorf("moved to device %d: device %d has %+v", device, d, l)
			}
		}
	}
	if got := fmt.Sprint(x.Value()); got != "[1 2 3]" {
		t.Errorf("after the moves: %s", got)
	}
	must.Refuse(t, "moving to device 7 of 3", x.MaterializeOnDevice(b, false, 7))
}

// clone returns a copy on the host: a tensor given to a program moves to its device.
func clone(t testing.TB, x *tensors.Tensor) *tensors.Tensor {
	t.Helper()
	return must.Get(x.LocalClone())(t)
}

// fails checks that a call returns an error that says all of the words.
func fails[T any](v T, err error) func(t testing.TB, what string, words ...string) {
	return func(t testing.TB, what string, words ...string) {
		t.Helper()
		must.Refuse(t, what, err, words...)
	}
}
