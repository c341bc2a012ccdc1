package ddp_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// BenchmarkTracing says what it costs to record a step of two ranks. Each round makes the step untraced, traced, and
// untraced by an engine of its own, in turns that begin with another one each time. The ratios are over the first: the
// median of the rounds', and that of the least times. Those of off/off say how far two equal things are apart here.
func BenchmarkTracing(b *testing.B) {
	backend := devicetest.Open(b, 2)
	recorder := trace.New()
	c := gpt.Config{Layers: 2, Width: 128, Heads: 4, Seq: 64, Vocab: gpt.ReferenceConfig().Vocab}
	batches, err := gpt.Reference().Batches(c, 8)
	if err != nil {
		b.Fatal(err)
	}
	inputs, targets, err := batches.Step(0)
	if err != nil {
		b.Fatal(err)
	}
	var steps []func()
	for _, r := range []*trace.Recorder{nil, recorder, nil} {
		steps = append(steps, stepper(b, backend, c, r, inputs, targets))
	}
	for range 3 {
		for _, step := range steps {
			step()
		}
	}
	recorder.Take()

	took := make([][]float64, len(steps)) // in seconds
	spans := 0
	for round := 0; b.Loop(); round++ {
		for i := range steps {
			k := (round + i) % len(steps)
			begin := time.Now()
			steps[k]()
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

// stepper returns what makes a step on two ranks.
func stepper(b *testing.B, backend *xla.Backend, c gpt.Config, r *trace.Recorder, inputs, targets *tensors.Tensor) func() {
	b.Helper()
	engine, err := ddp.NewEngine(backend, train.Recipe{Model: c, Rule: optim.AdamW(3e-4)}, ddp.Options{Trace: r})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(engine.Close)
	groups, err := group.New(2)
	if err != nil {
		b.Fatal(err)
	}
	ranks := make([]*ddp.Rank, len(groups))
	each := func(do func(i int) error) {
		errs := make([]error, len(ranks))
		var all sync.WaitGroup
		for i := range ranks {
			all.Go(func() { errs[i] = do(i) })
		}
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			b.Fatal(err)
		}
	}
	ctx := context.Background()
	each(func(i int) (err error) {
		ranks[i], err = engine.Join(ctx, groups[i], i)
		return err
	})
	b.Cleanup(func() { each(func(i int) error { return ranks[i].Close() }) })
	return func() {
		each(func(i int) error {
			_, err := ranks[i].Step(ctx, inputs, targets)
			return err
		})
	}
}
