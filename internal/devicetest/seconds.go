package devicetest

import (
	"testing"
	"time"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/xla"
)

// Seconds returns how long a device computes fn, for benchmarks: a run of 20 in a row, the least of five times. The
// inputs are those that a function makes of a number, on the device. The first element of the last result, which is
// read, waits for all of them.
func Seconds(t testing.TB, b *xla.Backend, inputs, fn func([]*graph.Node) []*graph.Node) float64 {
	t.Helper()
	of := func(fn func([]*graph.Node) []*graph.Node) *xla.Portable {
		p := must.Get(xla.CompilePortable(b, fn))(t)
		t.Cleanup(p.Close)
		return p
	}
	free := func(all []*tensors.Tensor) {
		for _, x := range all {
			x.MustFinalizeAll()
		}
	}
	in := must.Get(of(inputs).Call(0, float32(1)))(t)
	defer free(in)
	args := make([]any, len(in))
	for i, x := range in {
		args[i] = x
	}
	timed := of(func(in []*graph.Node) []*graph.Node {
		out := fn(in)
		last := graph.Reshape(out[len(out)-1], -1)
		return append(out, graph.ConvertDType(graph.Slice(last, graph.AxisElem(0)), dtypes.Float32))
	})
	run := func(times int) time.Duration {
		begun := time.Now()
		var out []*tensors.Tensor
		for range times {
			free(out)
			out = must.Get(timed.Call(0, args...))(t)
		}
		must.Do(t, tensors.ConstFlatData(out[len(out)-1], func([]float32) {}))
		took := time.Since(begun)
		free(out)
		return took
	}
	run(3)
	const times = 20
	least := run(times)
	for range 4 {
		least = min(least, run(times))
	}
	return least.Seconds() / times
}

// Compare reports the time of a kernel of ours in place of the benchmark's own, XLA's time as a ratio, above 1 where
// the kernel is faster, and the share of a bandwidth at which each moves bytes.
func Compare(b *testing.B, own, xlas, bytes, bandwidth float64) {
	b.ReportMetric(1e6*own, "µs")
	b.ReportMetric(1e6*xlas, "XLA-µs")
	b.ReportMetric(xlas/own, "XLA/own")
	b.ReportMetric(bytes/own/1e9, "GB/s")
	b.ReportMetric(100*bytes/own/bandwidth, "%-of-limit")
	b.ReportMetric(100*bytes/xlas/bandwidth, "XLA-%-of-limit")
	b.ReportMetric(0, "ns/op")
}
