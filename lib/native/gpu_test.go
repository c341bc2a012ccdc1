package native_test

import (
	"testing"
	"unsafe"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/native"
	"github.com/shardbook/shardbook/lib/xla"
)

// With a GPU and the real nvcc, a kernel changes what XLA put on the device.
func TestGPU(t *testing.T) {
	devicetest.GPU(t)
	var double func(x unsafe.Pointer, n int64) error
	_, err := native.LoadCUDA(`
__global__ void twice(float *x, int64_t n) {
	int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
	if (i < n) x[i] *= 2;
}
static const char *launch(void *x, int64_t n) {
	twice<<<(n + 255) / 256, 256>>>((float *)x, n);
	return NULL;
}`, native.WithCache(t.TempDir()), native.Bind("launch", &double))
	must.Do(t, err)
	x := make([]float32, 1000)
	for i := range x {
		x[i] = float32(i)
	}
	placed := must.Get(devicetest.One().Put(tensors.FromValue(x), 0))(t)
	at := must.Get(xla.DevicePointer(placed))(t)
	must.Do(t, double(at, int64(len(x))))
	tensors.MustConstFlatData(placed, func(got []float32) {
		for i, v := range got {
			if v != 2*x[i] {
				t.Fatalf("element %d is %g, want %g", i, v, 2*x[i])
			}
		}
	})
	wants(t, double(unsafe.Pointer(&x[0]), 1), "host's memory")
}
