package xla_test

import (
	"testing"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/plugin"
	"github.com/shardbook/shardbook/lib/xla"
)

// TestDeviceMemory counts an array on a GPU; XLA's CPUs do not count, and say so.
func TestDeviceMemory(t *testing.T) {
	b := devicetest.OpenOwn(t, 1)
	fails(b.DeviceMemory(-1))(t, "device −1", "device -1")
	fails(b.DeviceMemory(1))(t, "device 1 of 1", "choose one from 0 to 0")
	if b.Info().Platform == plugin.CPU {
		fails(b.DeviceMemory(0))(t, "memory of a CPU device", "does not count its memory")
	} else {
		const bytes = 64 << 20
		before := must.Get(b.DeviceMemory(0))(t)
		mesh := must.Get(b.Mesh(xla.Axis("device", 1)))(t)
		placed := must.Get(mesh.Place(tensors.FromFlatDataAndDimensions(make([]float32, bytes/4), bytes/4),
			xla.Replicated()))(t)
		after := must.Get(b.DeviceMemory(0))(t)
		if rise := after.Used - before.Used; rise < bytes || rise > 2*bytes || after.Peak < after.Used ||
			after.Limit < after.Peak {
			t.Errorf("an array of %d bytes: %+v, before %+v", bytes, after, before)
		}
		must.Do(t, placed.FinalizeAll())
	}
	b.Close()
	fails(b.DeviceMemory(0))(t, "memory after Close", "closed")
}
