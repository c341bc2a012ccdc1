package kernel_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

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

// BenchmarkCell runs, in one kernel and in turn, cells that print a line and cells
// that compute on XLA, and reports how many times longer the latter take, as the
// median and as the least against the least. Both kinds run once before.
func BenchmarkCell(b *testing.B) {
	k := ready(b)
	cells := []string{hello, compute}
	for range max(b.N, 10) {
		cells = append(cells, hello, compute)
	}
	path := notebook(b, cells...)
	out := filepath.Join(b.TempDir(), "out.ipynb")
	b.ResetTimer()
	if err := k.Headless(b.Context(), kernel.Run{Notebook: path, Ipynb: out, Timing: true}); err != nil {
		b.Fatal(err)
	}
	b.StopTimer()
	times := cellTimes(b, out)[2:]
	var plain, xla, ratio []float64
	for i := 0; i < len(times); i += 2 {
		plain, xla = append(plain, times[i]), append(xla, times[i+1])
		ratio = append(ratio, times[i+1]/times[i])
	}
	slices.Sort(ratio)
	b.ReportMetric(ratio[len(ratio)/2], "ratio-median")
	b.ReportMetric(slices.Min(xla)/slices.Min(plain), "ratio-of-mins")
	b.ReportMetric(0, "ns/op") // one operation is a whole pair of cells: only the ratio means something
}

// cellTimes returns how long each cell of an executed notebook ran, in seconds,
// from when its kernel took it to when it had answered.
func cellTimes(b *testing.B, path string) []float64 {
	text, err := os.ReadFile(path)
	if err != nil {
		b.Fatal(err)
	}
	var file struct {
		Cells []struct {
			Metadata struct {
				Execution struct {
					Begin time.Time `json:"iopub.status.busy"`
					End   time.Time `json:"iopub.status.idle"`
				}
			}
		}
	}
	if err := json.Unmarshal(text, &file); err != nil {
		b.Fatal(err)
	}
	var times []float64
	for _, cell := range file.Cells {
		times = append(times, cell.Metadata.Execution.End.Sub(cell.Metadata.Execution.Begin).Seconds())
	}
	return times
}
