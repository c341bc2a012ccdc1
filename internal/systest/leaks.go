package systest

import (
	"runtime"
	"testing"
	"time"
)

// NoLeaks returns a function that fails the test unless all goroutines that were started since have ended.
func NoLeaks(t *testing.T) func() {
	t.Helper()
	before := runtime.NumGoroutine()
	return func() {
		t.Helper()
		for begun := time.Now(); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
			if time.Since(begun) > 10*time.Second {
				stacks := make([]byte, 1<<20)
				t.Fatalf(
					"%d goroutines, %d before:\n%s",
					runtime.NumGoroutine(),
					before,
					stacks[:runtime.Stack(stacks, true)],
				)
			}
		}
	}
}
