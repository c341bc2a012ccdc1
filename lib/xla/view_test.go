package xla_test

import (
	"testing"
	"unsafe"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/xla"
)

// The next program reads what is written through a view, of placed tensors and of outputs.
func TestViewIsTheDevicesMemory(t *testing.T) {
	mesh := must.Get(devicetest.OpenOwn(t, 2).Mesh(xla.Axis("data", 2)))(t)
	p := must.Get(xla.Compile(mesh, func(x *graph.Node) *graph.Node { return graph.AddScalar(x, 1) },
		xla.In(xla.Shard(0, "data")).Gives(xla.Shard(0, "data"))))(t)
	defer p.Close()
	x := place(t, mesh, []float32{1, 2, 3, 4})
	for turn := range 3 {
		for device, shard := range x.Shards() {
			_ = shard.Value() // leaves a copy on the host, which must not be read again
			view := must.Get(xla.View[float32](shard))(t)
			if address, err := xla.DevicePointer(shard); err != nil || address != unsafe.Pointer(&view[0]) {
				t.Errorf("turn %d: device %d has its memory at %v (error %v), the view at %p", turn, device, address,
					err, &view[0])
			}
			view[1] = float32(100*turn + device)
			if got := shard.Value().([]float32)[1]; got != view[1] {
				t.Errorf("turn %d: device %d has %g, want %g", turn, device, got, view[1])
			}
		}
		out := must.Get(p.Call(x))(t)
		for device, shard := range out[0].Shards() {
			if got, want := shard.Value().([]float32)[1], float32(100*turn+device+1); got != want {
				t.Errorf("turn %d: the program on device %d read %g, want %g", turn, device, got-1, want-1)
			}
		}
		x = out[0]
	}
}

func TestViewErrors(t *testing.T) {
	mesh := must.Get(devicetest.OpenOwn(t, 2).Mesh(xla.Axis("data", 2)))(t)
	placed := place(t, mesh, []float32{1, 2}).Shards()[0]
	fails(xla.View[int32](placed))(t, "float32 as int32", "Float32")
	host, other := tensors.FromValue([]float32{1}), tensors.FromValue([]float32{1})
	must.Do(t, other.MaterializeOnDevice(devicetest.PureGo(), false, 0))
	fails(xla.DevicePointer(other))(t, "another backend's tensor", "xla.Open")
	must.Do(t, placed.FinalizeAll())
	for what, x := range map[string]*tensors.Tensor{"not on a device": host, "invalid": placed} {
		fails(xla.View[float32](x))(t, "a view", what)
		fails(xla.DevicePointer(x))(t, "an address", what)
	}
}
