package ddp_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// BenchmarkTracing measures what it costs to record a step of two ranks. Each round runs the step untraced, traced, and
// untraced in another run, starting with another one in each round. It reports ratios to the first: the median over the
// rounds, and that of the shortest times. Those of off/off show the noise.
func BenchmarkTracing(b *testing.B) {
	backend := devicetest.Open(b, 2)
	recorder := trace.New()
	c := gpt.Config{Layers: 2, Width: 128, Heads: 4, Seq: 64, Vocab: gpt.ReferenceConfig().Vocab}
	batches, err := gpt.Reference().Batches(c, 8)
	must.Do(b, err)
	inputs, targets, err := batches.Step(0)
	must.Do(b, err)
	var forms []func()
	for _, r := range []*trace.Recorder{nil, recorder, nil} {
		forms = append(forms, steps(b, backend, c, r, inputs, targets))
	}
	for range 3 {
		for _, step := range forms {
			step()
		}
	}
	recorder.Take()

	took := make([][]float64, len(forms)) // in seconds
	spans := 0
	for round := 0; b.Loop(); round++ {
		for i := range forms {
			k := (round + i) % len(forms)
			begin := time.Now()
			forms[k]()
			took[k] = append(took[k], time.Since(begin).Seconds())
		}
		spans = len(recorder.Take().Spans) // after the clock: nothing is kept from round to round
	}
	for k, name := range map[int]string{1: "on/off", 2: "off/off"} {
		var ratios []float64
		for round, t := range took[k] {
			ratios = append(ratios, t/took[0][round])
		}
		slices.Sort(ratios)
		b.ReportMetric(ratios[len(ratios)/2], name)
		b.ReportMetric(slices.Min(took[k])/slices.Min(took[0]), name+"-of-least")
	}
	b.ReportMetric(1e3*slices.Min(took[0]), "least-ms/step")
	b.ReportMetric(float64(spans), "spans/step")
	b.ReportMetric(0, "ns/op") // three steps; none of the above
}

// steps returns what makes a step on two ranks.
func steps(b *testing.B, backend *xla.Backend, c gpt.Config, r *trace.Recorder, inputs,
	targets *tensors.Tensor) func() {
	b.Helper()
	run := start(b, backend, train.Recipe{Model: c, Optimizer: optim.AdamW(3e-4)}, 2, ddp.Options{Trace: r})
	b.Cleanup(func() { run.Close() })
	return func() {
		_, err := run.Step(context.Background(), inputs, targets)
		must.Do(b, err)
	}
}
