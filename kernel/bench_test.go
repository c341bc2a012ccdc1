package kernel_test

import (
	"slices"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/kerneltest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/kernel"
)

// hello is the least that a cell can do, and compute a small program on XLA: the
// difference is what opening the devices, compiling and linking cost.
const (
	hello   = "%%\nfmt.Println(\"hello\")"
	compute = `import (
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/notebook"
	"github.com/shardbook/shardbook/lib/xla"
)

%%
backend := notebook.Must(xla.Open())
defer backend.Close()
exec := notebook.Must(graph.NewExec(backend, func(x *graph.Node) *graph.Node { return graph.Square(x) }))
fmt.Println(notebook.Must(exec.Call(float32(3)))[0].Value())`
)

// BenchmarkCell runs, in one kernel and in turn, cells that print a line and cells that compute on XLA, and reports how
// many times longer the latter take, as the median and as the least against the least. Both kinds run once before.
func BenchmarkCell(b *testing.B) {
	k := kerneltest.Ready(b)
	cells := []string{hello, compute}
	for range max(b.N, 10) {
		cells = append(cells, hello, compute)
	}
	var seconds []float64
	run := kernel.Run{
		Notebook: notebook(b, cells...),
		OnRan:    func(_ int, took time.Duration) { seconds = append(seconds, took.Seconds()) },
	}
	b.ResetTimer()
	must.Do(b, k.Headless(b.Context(), run))
	b.StopTimer()
	var plain, xla, ratio []float64
	for i := 2; i < len(seconds); i += 2 {
		plain, xla = append(plain, seconds[i]), append(xla, seconds[i+1])
		ratio = append(ratio, seconds[i+1]/seconds[i])
	}
	slices.Sort(ratio)
	b.ReportMetric(ratio[len(ratio)/2], "ratio-median")
	b.ReportMetric(slices.Min(xla)/slices.Min(plain), "ratio-of-mins")
	b.ReportMetric(0, "ns/op") // an operation is a pair of cells: only the ratio means something
}
