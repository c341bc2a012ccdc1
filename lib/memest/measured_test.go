package memest_test

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/recompute"
	"github.com/shardbook/shardbook/lib/xla"
)

// table is a list of runs with the bounds of the error of their estimates.
type table struct {
	row       string // of docs/memory.md, with %d for the number of runs
	engine    memest.Method
	measure   func(run, *xla.Backend) (held, error)
	low, high float64 // relative to the measured bytes
	kernels   bool    // programs call the kernels of lib/xla; otherwise XLA computes everything
	runs      []run
}

// fitted have each setting of a model at least once. The formulas of [memest.Compiled] were read off XLA's buffers for
// these runs, so that this test shows only that they were written down right.
var fitted = table{
	row:    "`--engine compiled`: %d runs from which its formulas were made",
	engine: memest.Compiled, measure: run.measure, low: -0.05, high: 0.10,
	runs: []run{
		{},
		{change: sizes(1, 128, 4, 64, 4096), batch: 2},
		{change: sizes(1, 128, 8, 512, 256), batch: 2},
		{change: sizes(2, 128, 4, 32, 256), batch: 1},
		{change: func(c *gpt.Config) { c.Dropout, c.Vocab, c.Seq = 0.1, 16, 256 }, batch: 2},
		{change: both(both(llama, sizes(1, 256, 8, 256, 256)), func(c *gpt.Config) { c.Hidden, c.Tied = 704, true }),
			batch: 2, devices: 2},

		{change: recomputing(recompute.Block, 2), batch: 4},
		{change: recomputing(recompute.SubLayers, 1)},
		{change: recomputing(recompute.Selective, 1)},
		{change: recomputing(recompute.Every(2), 3)},
		{change: recomputing(recompute.Recomputing(recompute.Norm1, recompute.Norm2, recompute.Act), 1)},

		{optimizer: "adafactor", change: sizes(1, 128, 4, 256, 256), batch: 4},
		{optimizer: "adam8bit", change: sizes(1, 128, 4, 32, 256), batch: 1},
		{change: both(recomputing("ops:down", 2), func(c *gpt.Config) { c.Gated, c.Activation = true, gpt.ReLU }),
			optimizer: "lion"},
		{optimizer: "lamb", change: both(recomputing("ops:mix", 1), func(c *gpt.Config) { c.Activation = gpt.ReLU })},
		{change: sizes(1, 128, 4, 32, 256), batch: 1, clip: true},

		{prec: "bf16-pure", change: sizes(1, 64, 4, 64, 256), batch: 2, devices: 4},
		{prec: "bf16", change: sizes(1, 128, 4, 256, 256), batch: 4},
		{prec: "bf16", change: recomputing(recompute.Block, 1)},

		{change: both(flash, sizes(2, 64, 4, 1024, 64)), batch: 1},
		{change: both(flash, recomputing(recompute.Block, 2)), batch: 4},
		{change: both(flash, llama), prec: "bf16"},
	},
}

// unseen were chosen after the formulas were complete. No formula was changed for them.
var unseen = table{
	row:    "`--engine compiled`: %d runs of other sizes and options, for which no formula was changed",
	engine: memest.Compiled, measure: run.measure, low: -0.06, high: 0.06,
	runs: []run{
		{change: sizes(3, 96, 6, 192, 512), batch: 3},
		{change: sizes(2, 160, 5, 80, 1000), batch: 5, optimizer: "sgd"},
		{change: func(c *gpt.Config) { c.Norm, c.Positions, c.Hidden = gpt.RMSNorm, gpt.Rotary, 320 }, batch: 6},
		{change: both(sizes(4, 64, 2, 64, 256), func(c *gpt.Config) { c.Recompute = recompute.Sqrt }), batch: 10},
		{change: both(sizes(2, 128, 4, 48, 256), func(c *gpt.Config) { c.Gated, c.Tied = true, true }), batch: 7,
			clip: true},
		{change: both(sizes(2, 192, 6, 128, 300), func(c *gpt.Config) { c.Recompute = recompute.Selective }), batch: 4,
			prec: "bf16"},
		{change: sizes(1, 96, 3, 160, 256), batch: 3, devices: 2, optimizer: "lion"},
		{change: both(both(flash, llama), sizes(3, 64, 4, 320, 128)), batch: 2, optimizer: "adafactor"},
		{change: both(sizes(2, 64, 4, 96, 256), func(c *gpt.Config) { c.Dropout, c.NoBias = 0.2, true }), batch: 4,
			optimizer: "lamb"},
		{change: both(recomputing("ops:qkv,scores,mix", 2), func(c *gpt.Config) { c.KVHeads = 1 }), batch: 3},
	},
}

// missed have a larger error: XLA orders their operations differently from the formulas.
var missed = table{
	row:    "`--engine compiled`: %d runs that are known to be further off",
	engine: memest.Compiled, measure: run.measure, low: -0.20, high: 0.15,
	runs: []run{
		{optimizer: "lion", change: sizes(1, 128, 4, 32, 256), batch: 1, clip: true},
		{optimizer: "lion", change: sizes(1, 64, 4, 32, 256), batch: 1},
		{optimizer: "adafactor", change: sizes(1, 128, 4, 32, 256), batch: 1},
		{change: recomputing("ops:up", 1)},
		{change: recomputing("ops:mix,mid", 1)},
		{change: both(recomputing(recompute.Block, 4), plain), batch: 4},
		// as Choose says
		{change: both(recomputing("plan:norm1,qkv,scores,mid,norm2,up,act;norm1,scores,norm2", 2), plain)},
	},
}

// planned measure the passes of one micro-batch, without the update. No formula was fitted to them.
var planned = table{
	row:    "`--engine planned`, the default: %d runs in float32",
	engine: memest.Planned, measure: run.accumulate, low: -0.05, high: 0.05,
	runs: []run{
		{},
		{change: sizes(3, 96, 6, 192, 512), batch: 3},
		{change: both(llama, sizes(3, 128, 4, 128, 256)), batch: 3},
		{change: both(sizes(2, 128, 4, 192, 64), func(c *gpt.Config) { c.Dropout = 0.1 }), batch: 2},
		{change: both(recomputing(recompute.Block, 3), func(c *gpt.Config) { c.Width = 96 }), batch: 4},
		{change: recomputing(recompute.Selective, 2), batch: 4},
		{change: both(flash, recomputing(recompute.Block, 3)), batch: 4},
	},
}

// plannedBelow need more on CPUs than is estimated. In bfloat16 XLA saves every rounded step of GELU, which custom
// kernels need not and the ledger leaves out. With 32 tokens, gradients waiting for accumulation outweigh the rest.
var plannedBelow = table{
	row:    "`--engine planned`: %d runs in bfloat16 or of 32 tokens",
	engine: memest.Planned, measure: run.accumulate, low: -0.25, high: 0.05,
	runs: []run{
		{prec: "bf16", change: sizes(2, 96, 6, 192, 512), batch: 3},
		{prec: "bf16", change: recomputing(recompute.Block, 2)},
		{prec: "bf16", change: both(flash, recomputing(recompute.Block, 3))},
		{change: sizes(2, 128, 4, 32, 256), batch: 1},
	},
}

// withKernels are the unseen runs as they are by default on CPUs: the kernels need no transposed operands, and
// for GELU and cross-entropy save only inputs and two numbers a row; the estimate has what XLA saves.
var withKernels = table{
	row:    "`--engine compiled`: the same %d runs with the kernels of CPUs, which need less",
	engine: memest.Compiled, measure: run.measure, low: -0.01, high: 0.35, kernels: true,
	runs: unseen.runs,
}

func TestMeasuredUnseen(t *testing.T)       { unseen.compare(t) }
func TestMeasuredKernels(t *testing.T)      { withKernels.compare(t) }
func TestMeasuredPlanned(t *testing.T)      { planned.compare(t) }
func TestMeasuredPlannedBelow(t *testing.T) { plannedBelow.compare(t) }

func TestMeasuredFitted(t *testing.T) {
	systest.FullOnly(t, "the runs that the estimate was fitted on")
	fitted.compare(t)
}

func TestMeasuredMissed(t *testing.T) {
	systest.FullOnly(t, "the runs that the estimate is known to miss")
	missed.compare(t)
}

// TestDocumentedBounds checks the number of runs and the bounds of each table in docs/memory.md.
func TestDocumentedBounds(t *testing.T) {
	text := must.Get(os.ReadFile("../../docs/memory.md"))(t)
	for _, table := range []table{fitted, unseen, withKernels, missed, planned, plannedBelow} {
		row := fmt.Sprintf("| "+table.row+" | −%.0f%% to +%.0f%% |\n", len(table.runs), -100*table.low, 100*table.high)
		if !strings.Contains(string(text), row) {
			t.Errorf("docs/memory.md has no row %q", row)
		}
	}
}

// compare estimates and measures the runs. States must be exact, and the error of the rest within the bounds.
func (of table) compare(t *testing.T) {
	t.Helper()
	options := []xla.Option{xla.Devices(4), xla.Plugin(devicetest.Plugin())}
	if !of.kernels {
		options = append(options, xla.NoKernels())
	}
	backend := must.Get(xla.Open(options...))(t)
	defer backend.Close()
	measured := make([]held, len(of.runs))
	turn := make(chan bool, 2) // a compilation uses one core
	var wait sync.WaitGroup
	for i, r := range of.runs {
		turn <- true
		wait.Go(func() {
			defer func() { <-turn }()
			var err error
			if measured[i], err = of.measure(r, backend); err != nil {
				t.Errorf("%v: %v", r, err)
			}
		})
	}
	wait.Wait()
	lines := fmt.Sprintf("\n%10s %10s %7s  %s\n", "estimated", "measured", "error", "run")
	for i, r := range of.runs {
		got, err := r.estimate(of.engine)
		if err != nil {
			t.Fatalf("%v: %v", r, err)
		}
		want := measured[i]
		for kind, bytes := range want.states {
			if got.states[kind] != bytes {
				t.Errorf("%v: estimated %d bytes of %s, measured %d", r, got.states[kind], kind, bytes)
			}
		}
		off := float64(got.temporary)/float64(want.temporary) - 1
		lines += fmt.Sprintf("%10d %10d %+6.1f%%  %v\n", got.temporary, want.temporary, 100*off, r)
		if !(of.low <= off && off <= of.high) {
			t.Errorf("%v: estimated %d bytes, measured %d: %+.1f%%, want from %+.0f%% to %+.0f%%", r, got.temporary,
				want.temporary, 100*off, 100*of.low, 100*of.high)
		}
	}
	t.Log(lines)
}
