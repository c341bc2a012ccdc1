// Package goxla has no code: its folders are packages of go-xla as cells have them. Its tests run twice, as they are
// and as a cell.
package goxla

import (
	"testing"
	"time"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/compute/support/backendtest"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/xla"
)

// TestBackend is GoMLX's test of backends.
func TestBackend(t *testing.T) {
	b := must.Get(xla.Open(xla.Devices(2)))(t)
	defer b.Close()
	backendtest.RunAll(t, b, nil)
}

// BenchmarkTransfer copies 256 MiB to a device and back, and reports the time of a plain copy over that of each.
func BenchmarkTransfer(b *testing.B) {
	backend := must.Get(xla.Open(xla.Devices(1)))(b)
	defer backend.Close()
	host := tensors.FromShape(shapes.Make(dtypes.Float32, 64<<20))
	from, to := make([]byte, 256<<20), make([]byte, 256<<20)
	least := map[string]time.Duration{}
	timed := func(name string, f func()) {
		start := time.Now()
		f()
		if took := time.Since(start); least[name] == 0 || took < least[name] {
			least[name] = took
		}
	}
	for b.Loop() {
		timed("copy", func() { copy(to, from) })
		var on *tensors.Tensor
		timed("put", func() { on = must.Get(backend.Put(host, 0))(b) })
		timed("get", func() {
			b := must.Get(on.Buffer(backend, 0))(b)
			if err := b.ToFlatData(to); err != nil {
				panic(err)
			}
		})
		must.Do(b, on.FinalizeAll())
	}
	for _, name := range []string{"put", "get"} {
		b.ReportMetric(float64(least["copy"])/float64(least[name]), "copy/"+name)
	}
}
