package memest_test

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

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

// run is a training run that is estimated and measured.
type run struct {
	change    func(*gpt.Config) // to a model of one block of width 128 with 4 heads, 128 positions and 256 tokens
	batch     int               // 0 is 8
	devices   int               // 0 is 1
	prec      string            // "" is fp32
	optimizer string            // "" is adamw
	clip      bool
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

// plain has fewer tensors than any published model.
func plain(c *gpt.Config) { c.Activation, c.Norm, c.NoBias = gpt.ReLU, gpt.RMSNorm, true }

func flash(c *gpt.Config) { c.Flash = true }

func both(f, g func(*gpt.Config)) func(*gpt.Config) { return func(c *gpt.Config) { f(c); g(c) } }

func (r run) config() gpt.Config {
	c := gpt.Config{Layers: 1, Width: 128, Heads: 4, Seq: 128, Vocab: 256}
	if r.change != nil {
		r.change(&c)
	}
	return c
}

func (r run) String() string {
	c := r.config()
	s := fmt.Sprintf("%d×%d, %d heads, batch %d×%d, vocabulary %d", c.Layers, c.Width, c.Heads, r.sequences(), c.Seq,
		c.Vocab)
	for _, extra := range []struct {
		is   bool
		text string
	}{
		{c.KVHeads > 0, fmt.Sprintf("%d kv", c.KVHeads)}, {c.Hidden > 0, fmt.Sprintf("hidden %d", c.Hidden)},
		{c.Gated, "gated"}, {c.Activation != "", string(c.Activation)}, {c.NoBias, "no bias"},
		{c.Norm != "", string(c.Norm)},
		{c.Positions != "", string(c.Positions)}, {c.Tied, "tied"}, {c.Dropout > 0, "dropout"}, {c.Flash, "flash"},
		{c.Recompute != "", string(c.Recompute)}, {r.devices > 1, fmt.Sprintf("data %d", r.devices)},
		{r.prec != "", r.prec},
		{r.optimizer != "", r.optimizer}, {r.clip, "clip"},
	} {
		if extra.is {
			s += ", " + extra.text
		}
	}
	return s
}

// sequences is the batch of each device.
func (r run) sequences() int { return cmp.Or(r.batch, 8) }

// setups are the recipe and the setup of the same run.
func (r run) setups() (recipe train.Recipe, setup memest.Setup, err error) {
	policy, err := precision.ParsePolicy(cmp.Or(r.prec, "fp32"))
	if err != nil {
		return recipe, setup, err
	}
	optimizer, err := optim.Parse(cmp.Or(r.optimizer, "adamw"), 1e-3)
	if err != nil {
		return recipe, setup, err
	}
	c := r.config()
	recipe = train.Recipe{Model: c, Optimizer: optimizer, Precision: policy}
	if r.clip {
		recipe.Clip = 1
	}
	return recipe, memest.Setup{
		Model: cost.FromGPT(c), Batch: r.sequences(), Precision: policy, Optimizer: optimizer, Recompute: c.Recompute,
		Flash:   c.Flash,
		Dropout: c.Dropout, Clip: r.clip, Parallelism: memest.Parallelism{Data: r.devices},
	}, nil
}

// held is the memory of a run on each device, in bytes: the states, and what else a step needs.
type held struct {
	states    map[memest.Kind]int64
	temporary int64
}

func (r run) estimate(engine memest.Method) (held, error) {
	_, setup, err := r.setups()
	if err != nil {
		return held{}, err
	}
	setup.Method = engine
	ledger, err := memest.Estimate(setup)
	if err != nil {
		return held{}, err
	}
	of := ledger.Stages[0].Of
	return held{
		states: map[memest.Kind]int64{
			memest.Parameters: of(memest.Parameters),
			memest.Gradients:  of(memest.Gradients),
			memest.Optimizer:  of(memest.Optimizer),
		},
		temporary: of(memest.Activations) + of(memest.Logits) + of(memest.Communication) + of(memest.Temporary),
	}, nil
}

// measure returns the states of the engine [memest.Compiled] after a step, and the temporary memory that XLA plans.
func (r run) measure(backend *xla.Backend) (held, error) {
	recipe, _, err := r.setups()
	if err != nil {
		return held{}, err
	}
	devices := max(1, r.devices)
	mesh, err := backend.Mesh(xla.Axis(train.Axis, devices))
	if err != nil {
		return held{}, err
	}
	start := train.New
	if devices > 1 {
		start = ddp.NewSPMD
	}
	run, err := start(mesh, recipe)
	if err != nil {
		return held{}, err
	}
	defer run.Close()
	tokens := tensors.FromShape(shapes.Make(dtypes.Int32, devices*r.sequences(), r.config().Seq))
	if _, err := run.Step(tokens, tokens); err != nil {
		return held{}, err
	}
	memory, err := run.Memory()
	states := run.BytesPerDevice()
	return held{map[memest.Kind]int64{
		memest.Parameters: states["parameters"], memest.Optimizer: states["optimizer"],
	}, memory.Temporary}, err
}

// accumulate returns what XLA plans for the passes of one micro-batch with gradient accumulation, as [memest.Planned]
// describes. The program's inputs are the parameters in the type of the passes and the accumulated gradients, which it
// donates. It has no update and no optimizer states.
func (r run) accumulate(backend *xla.Backend) (held, error) {
	recipe, _, err := r.setups()
	if err != nil {
		return held{}, err
	}
	mesh, err := backend.Mesh(xla.Axis(train.Axis, 1))
	if err != nil {
		return held{}, err
	}
	tree := recipe.Model.Params().As(recipe.Policy().Compute)
	n := len(tree)
	sums := make([]int, n) // indices of the inputs
	for i := range sums {
		sums[i] = n + i
	}
	everywhere := func(values int) []xla.Placement { return slices.Repeat([]xla.Placement{xla.Replicated()}, values) }
	program, err := xla.Compile(mesh, func(in []*graph.Node) []*graph.Node {
		weights, before, inputs, targets := in[:n], in[n:2*n], in[2*n], in[2*n+1]
		key, row := graph.Const(inputs.Graph(), uint32(1)), graph.Const(inputs.Graph(), uint32(0))
		loss := recipe.Model.(train.Noisy).NoisyLoss(tree.Nodes(weights), inputs, targets, key, row)
		out := []*graph.Node{graph.ConvertDType(loss, recipe.Policy().Output)}
		for i, gradient := range graph.Gradient(out[0], weights...) {
			out = append(out, graph.Add(before[i], gradient))
		}
		return out
	}, xla.In(everywhere(2*n+2)...).Gives(everywhere(n+1)...).Donates(sums...))
	if err != nil {
		return held{}, err
	}
	defer program.Close()
	var args []any
	for _, s := range append(slices.Clone(tree), tree...) {
		args = append(args, tensors.FromShape(s.Shape))
	}
	tokens := tensors.FromShape(shapes.Make(dtypes.Int32, r.sequences(), r.config().Seq))
	if err := program.Prepare(append(args, tokens, tokens)...); err != nil {
		return held{}, err
	}
	memory, err := program.Memory()
	if err != nil {
		return held{}, err
	}
	// Donated inputs are the gradients; the other arguments are parameters and tokens.
	return held{map[memest.Kind]int64{
		memest.Gradients:  memory.Aliased,
		memest.Parameters: memory.Arguments - memory.Aliased - 2*int64(tokens.Shape().ByteSize()),
	}, memory.Temporary}, nil
}
