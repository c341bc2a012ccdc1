package devicetest

import (
	"runtime"
	"testing"
	"time"

	"github.com/shardbook/shardbook/lib/xla"
)

// NoLeaks returns a function that fails the test unless all goroutines that were started since have ended and all that was
// put on the devices since is gone.
func NoLeaks(t *testing.T, backend *xla.Backend) func() {
	t.Helper()
	runtime.GC()
	goroutines, live := runtime.NumGoroutine(), backend.Live()
	return func() {
		t.Helper()
		for begun := time.Now(); runtime.NumGoroutine() > goroutines; time.Sleep(time.Millisecond) {
			if time.Since(begun) > 10*time.Second {
				stacks := make([]byte, 1<<20)
				t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), goroutines, stacks[:runtime.Stack(stacks, true)])
			}
		}
		for device, now := range backend.Live() { // numbers that programs were given wait for the garbage collector
			if buffers, bytes := now.Buffers-live[device].Buffers, now.Bytes-live[device].Bytes; bytes > 4*int64(buffers) {
				t.Errorf("device %d has %d bytes in %d buffers more than before", device, bytes, buffers)
			}
		}
	}
}
