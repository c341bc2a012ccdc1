package xla_test

import (
	"strings"
	"testing"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/xla"
)

// TestViewIsTheDevicesMemory checks that View's address is the device's.
func TestDevicePointerErrors(t *testing.T) {
	mesh := must(devicetest.OpenOwn(t, 2).Mesh(xla.Axis("data", 2)))(t)
	x := place(t, mesh, []float32{1, 2, 3, 4})
	if _, err := xla.DevicePointer(tensors.FromValue([]float32{1})); err == nil ||
		!strings.Contains(err.Error(), "not on a device") {
		t.Errorf("host tensor: %v", err)
	}
	other := tensors.FromValue([]float32{1})
	check(t, other.MaterializeOnDevice(devicetest.PureGo(), false, 0))
	if _, err := xla.DevicePointer(other); err == nil || !strings.Contains(err.Error(), "xla.Open") {
		t.Errorf("another backend's tensor: %v", err)
	}
	gone := x.Shards()[0]
	check(t, gone.FinalizeAll())
	if _, err := xla.DevicePointer(gone); err == nil {
		t.Error("a finalized tensor has an address")
	}
}
