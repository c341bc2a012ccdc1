package precision

import (
	"testing"

	"github.com/gomlx/gomlx/core/graph"
)

// WithFP8 has matmuls use XLA's of 8-bit floats on any device, until the test ends.
func WithFP8(t *testing.T) {
	t.Helper()
	was := hasFP8
	hasFP8 = func(*graph.Graph) bool { return true }
	t.Cleanup(func() { hasFP8 = was })
}
