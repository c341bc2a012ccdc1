package memest_test

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/recompute"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// Half the time of a compilation is spent on machine code, which has no part in the buffers.
func TestMain(m *testing.M) {
	devicetest.CompileQuickly()
	os.Exit(m.Run())
}

// run is a training run that is estimated and measured.
type run struct {
	change  func(*gpt.Config) // of a model of one block of width 128 with 4 heads, 128 positions and 256 tokens
	batch   int               // 0 is 8
	devices int               // 0 is 1
	prec    string            // "" is fp32
	rule    string            // "" is adamw
	clip    bool
}

func sizes(layers, width, heads, seq, vocab int) func(*gpt.Config) {
	return func(c *gpt.Config) { c.Layers, c.Width, c.Heads, c.Seq, c.Vocab = layers, width, heads, seq, vocab }
}

func recomputing(p recompute.Policy, layers int) func(*gpt.Config) {
	return func(c *gpt.Config) { c.Recompute, c.Layers = p, layers }
}

func llama(c *gpt.Config) {
	c.Gated, c.NoBias, c.Norm, c.Positions, c.KVHeads = true, true, gpt.RMSNorm, gpt.Rotary, 2
}

func flash(c *gpt.Config) { c.Flash = true }

func both(f, g func(*gpt.Config)) func(*gpt.Config) { return func(c *gpt.Config) { f(c); g(c) } }

// runs have each setting of a model in one of them at least, and so are few: each is compiled.
var runs = []run{
	{},
	{change: sizes(1, 128, 4, 64, 4096), batch: 2},
	{change: sizes(1, 128, 8, 512, 256), batch: 2},
	{change: sizes(2, 128, 4, 32, 256), batch: 1},
	{change: func(c *gpt.Config) { c.Dropout, c.Vocab, c.Seq = 0.1, 16, 256 }, batch: 2},
	{change: both(both(llama, sizes(1, 256, 8, 256, 256)), func(c *gpt.Config) { c.Hidden, c.Tied = 704, true }), batch: 2, devices: 2},

	{change: recomputing(recompute.Block, 2), batch: 4},
	{change: recomputing(recompute.Halves, 1)},
	{change: recomputing(recompute.Selective, 1)},
	{change: recomputing(recompute.Every(2), 3)},
	{change: recomputing(recompute.Recomputing(recompute.Norm1, recompute.Norm2, recompute.Act), 1)},

	{rule: "adafactor", change: sizes(1, 128, 4, 256, 256), batch: 4},
	{rule: "adam8bit", change: sizes(1, 128, 4, 32, 256), batch: 1},
	{rule: "lion", change: both(recomputing("ops:down", 2), func(c *gpt.Config) { c.Gated, c.Activation = true, gpt.ReLU })},
	{rule: "lamb", change: both(recomputing("ops:mix", 1), func(c *gpt.Config) { c.Activation = gpt.ReLU })},
	{change: sizes(1, 128, 4, 32, 256), batch: 1, clip: true},

	{prec: "bf16-pure", change: sizes(1, 64, 4, 64, 256), batch: 2, devices: 4},
	{prec: "bf16", change: sizes(1, 128, 4, 256, 256), batch: 4},
	{prec: "bf16", change: recomputing(recompute.Block, 1)},

	{change: both(flash, sizes(2, 64, 4, 1024, 64)), batch: 1},
	{change: both(flash, recomputing(recompute.Block, 2)), batch: 4},
	{change: both(flash, llama), prec: "bf16"},
}

func (r run) config() gpt.Config {
	c := gpt.Config{Layers: 1, Width: 128, Heads: 4, Seq: 128, Vocab: 256}
	if r.change != nil {
		r.change(&c)
	}
	return c
}

func (r run) String() string {
	c := r.config()
	s := fmt.Sprintf("%d×%d, %d heads, batch %d×%d, vocabulary %d", c.Layers, c.Width, c.Heads, max(8*boolInt(r.batch == 0), r.batch), c.Seq, c.Vocab)
	for _, extra := range []struct {
		is   bool
		text string
	}{{c.KVHeads > 0, fmt.Sprintf("%d kv", c.KVHeads)}, {c.Hidden > 0, fmt.Sprintf("hidden %d", c.Hidden)}, {c.Gated, "gated"}, {c.Activation != "", string(c.Activation)}, {c.NoBias, "no bias"},
		{c.Norm != "", string(c.Norm)}, {c.Positions != "", string(c.Positions)}, {c.Tied, "tied"}, {c.Dropout > 0, "dropout"}, {c.Flash, "flash"},
		{c.Recompute != "", string(c.Recompute)}, {r.devices > 1, fmt.Sprintf("data %d", r.devices)}, {r.prec != "", r.prec}, {r.rule != "", r.rule},
		{r.clip, "clip"}} {
		if extra.is {
			s += ", " + extra.text
		}
	}
	return s
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// parts are the recipe and the setup of a run: they must say the same.
func (r run) parts(t *testing.T) (train.Recipe, memest.Setup) {
	t.Helper()
	policy, err := precision.ParsePolicy("fp32")
	if r.prec != "" {
		policy, err = precision.ParsePolicy(r.prec)
	}
	if err != nil {
		t.Fatal(err)
	}
	name := "adamw"
	if r.rule != "" {
		name = r.rule
	}
	rule, err := optim.Parse(name, 1e-3)
	if err != nil {
		t.Fatal(err)
	}
	c := r.config()
	recipe := train.Recipe{Model: c, Rule: rule, Precision: policy}
	if r.clip {
		recipe.Clip = 1
	}
	batch := r.batch
	if batch == 0 {
		batch = 8
	}
	return recipe, memest.Setup{Model: cost.FromGPT(c), Batch: batch, Precision: policy, Rule: rule, Recompute: c.Recompute, Flash: c.Flash, Dropout: c.Dropout,
		Clip: r.clip, Engine: memest.Compiled, Layout: memest.Layout{Data: r.devices}}
}

// measure trains one step and returns what each device keeps, and what the step plans besides.
func (r run) measure(backend *xla.Backend, recipe train.Recipe, s memest.Setup) (kept map[string]int64, temporary int64, err error) {
	devices := max(1, r.devices)
	mesh, err := backend.Mesh(xla.Axis(train.Axis, devices))
	if err != nil {
		return nil, 0, err
	}
	start := train.New
	if devices > 1 {
		start = ddp.NewSPMD
	}
	run, err := start(mesh, recipe)
	if err != nil {
		return nil, 0, err
	}
	defer run.Close()
	rows, seq := devices*s.Batch, r.config().Seq
	tokens := tensors.FromFlatDataAndDimensions(make([]int32, rows*seq), rows, seq)
	if _, err := run.Step(tokens, tokens); err != nil {
		return nil, 0, err
	}
	memory, err := run.Memory()
	return run.BytesPerDevice(), memory.Temporary, err
}

// Estimates against runs: what is kept between steps is right to the byte; activations, logits and temporary memory
// are from 5% below to 10% above what XLA plans. The table of errors is in the test's log.
func TestEstimatesAgainstMeasuredMemory(t *testing.T) {
	backend := devicetest.Open(t, 4)
	type result struct {
		estimated, measured int64
		states              string
	}
	results := make([]result, len(runs))
	turn := make(chan bool, 2) // a compilation keeps one core busy
	var wait sync.WaitGroup
	for i, r := range runs {
		recipe, setup := r.parts(t)
		ledger, err := memest.Estimate(setup)
		if err != nil {
			t.Fatalf("%v: %v", r, err)
		}
		turn <- true
		wait.Go(func() {
			defer func() { <-turn }()
			kept, temporary, err := r.measure(backend, recipe, setup)
			if err != nil {
				t.Errorf("%v: %v", r, err)
				return
			}
			of := ledger.Stages[0].Of
			results[i] = result{of(memest.Activations) + of(memest.Logits) + of(memest.Communication) + of(memest.Temporary), temporary, "exact"}
			if of(memest.Parameters) != kept["parameters"] || of(memest.Optimizer) != kept["optimizer"] {
				results[i].states = "wrong"
				t.Errorf("%v: estimated %d bytes of parameters and %d of optimizer, measured %v", r, of(memest.Parameters), of(memest.Optimizer), kept)
			}
		})
	}
	wait.Wait()
	table := fmt.Sprintf("\n%10s %10s %7s  %-6s %s\n", "estimated", "measured", "error", "states", "run")
	for i, r := range runs {
		got := results[i]
		if got.measured == 0 {
			continue
		}
		off := float64(got.estimated)/float64(got.measured) - 1
		table += fmt.Sprintf("%10d %10d %+6.1f%%  %-6s %v\n", got.estimated, got.measured, 100*off, got.states, r)
		if off < -0.05 || off > 0.10 {
			t.Errorf("%v: estimated %d bytes, measured %d: %+.1f%%, want from -5%% to +10%%", r, got.estimated, got.measured, 100*off)
		}
	}
	t.Log(table)
}
