package devicetest

import (
	"runtime"
	"testing"

	"github.com/shardbook/shardbook/internal/systest"
	"github.com/shardbook/shardbook/lib/xla"
)

// NoLeaks returns a function that fails the test unless all goroutines that were started since have ended and all
// buffers that were made on the devices since are freed.
func NoLeaks(t *testing.T, backend *xla.Backend) func() {
	t.Helper()
	runtime.GC()
	ended, live := systest.NoLeaks(t), backend.Live()
	return func() {
		t.Helper()
		ended()
		for device, now := range backend.Live() { // numbers that programs were given wait for the garbage collector
			if buffers, bytes := now.Buffers-live[device].Buffers,
				now.Bytes-live[device].Bytes; bytes > 4*int64(buffers) {
				t.Errorf("device %d has %d bytes in %d buffers more than before", device, bytes, buffers)
			}
		}
	}
}
