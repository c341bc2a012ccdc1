package xla_test

import (
	"strings"
	"testing"
	"unsafe"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/xla"
)

// On CPUs the address is that of the view, of placed tensors as of a program's outputs.
func TestDevicePointer(t *testing.T) {
	mesh, err := devicetest.Open(t, 2).Mesh(xla.Axis("data", 2))
	if err != nil {
		t.Fatal(err)
	}
	p, err := xla.Compile(mesh, func(x *graph.Node) *graph.Node { return graph.AddScalar(x, 1) },
		xla.In(xla.Shard(0, "data")).Gives(xla.Shard(0, "data")))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	x := place(t, mesh, []float32{1, 2, 3, 4})
	out, err := p.Call(x)
	if err != nil {
		t.Fatal(err)
	}
	for _, shard := range append(x.Shards(), out[0].Shards()...) {
		address, err := xla.DevicePointer(shard)
		if err != nil {
			t.Fatal(err)
		}
		view, err := xla.View[float32](shard)
		if err != nil {
			t.Fatal(err)
		}
		if address != unsafe.Pointer(&view[0]) {
			t.Errorf("the address is %v, the view's %p", address, &view[0])
		}
	}
	if _, err := xla.DevicePointer(tensors.FromValue([]float32{1})); err == nil || !strings.Contains(err.Error(), "not on a device") {
		t.Errorf("host tensor: %v", err)
	}
	other := tensors.FromValue([]float32{1})
	if err := other.MaterializeOnDevice(devicetest.PureGo(), false, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := xla.DevicePointer(other); err == nil || !strings.Contains(err.Error(), "xla.Open") {
		t.Errorf("another backend's tensor: %v", err)
	}
	gone := x.Shards()[0]
	if err := gone.FinalizeAll(); err != nil {
		t.Fatal(err)
	}
	if _, err := xla.DevicePointer(gone); err == nil {
		t.Error("a finalized tensor has an address")
	}
}
