package flash_test

import (
	"os"
	"testing"
)

// Tests compile far more than they run. Optimized less, programs compile in half the time.
func TestMain(m *testing.M) {
	os.Setenv("XLA_FLAGS", os.Getenv("XLA_FLAGS")+" --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")
	os.Exit(m.Run())
}
