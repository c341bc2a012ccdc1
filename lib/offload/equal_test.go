package offload_test

import (
	"fmt"
	"testing"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/offload"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
)

// ulp is between float32's numbers at 1. Runs may be some of them apart: XLA rounds a product and a sum once or twice as
// it compiles a program, and train's is another one; and plain Go, which computes updates on the host, rounds twice.
const ulp = 0x1p-23

// Whatever is kept wherever, a run learns what train's run learns; and as long as the device computes the updates, what
// is moved changes not a bit.
func TestEveryOption(t *testing.T) {
	const steps = 4
	// Biases of one block have another rule, so blocks of one kind must not share their updates.
	adamw := optim.Grouped(optim.AdamW(1e-2), optim.Group{Has: optim.Named("h1.b"), Rule: optim.SGD(0.1)})
	for name, c := range map[string]struct {
		rule    optim.Rule
		options []offload.Options
		learn   func(t testing.TB, m train.Model, rule optim.Rule, p precision.Policy, of batches, steps int) result
	}{
		"sgd":       {momentum, append(onHost, offload.Options{}, offload.Options{Optimizer: host, Activations: host, Prefetch: 2}), reference},
		"adamw":     {adamw, onHost, plainly},
		"adafactor": {optim.Adafactor(1e-2), onHost, plainly},
	} {
		t.Run(name, func(t *testing.T) {
			want := c.learn(t, toy(), c.rule, precision.Policy{}, toyBatch, steps)
			same := map[offload.Where]result{}
			for _, o := range c.options {
				got := learn(t, start(t, toy(), c.rule, o), toyBatch, steps)
				near(t, o, got, want, 32)
				if first, ok := same[o.Update]; !ok {
					same[o.Update] = got
				} else if d := distance(t, got, first); d != 0 {
					t.Errorf("%s: differs by %g from a run that differs in where things are kept", describe(o), d)
				}
			}
		})
	}
}

// onHost has all that can be on the host there, with both ways to update.
var onHost = []offload.Options{
	{Optimizer: host, Activations: host},
	{Optimizer: host, Update: host, Activations: host, Prefetch: 2},
}

func describe(o offload.Options) string {
	return fmt.Sprintf("optimizer %s, update %s, activations %s, prefetch %d", o.Optimizer, o.Update, o.Activations, o.Prefetch)
}

// near fails if a run is further from train's than some units in the last place of the largest elements.
func near(t *testing.T, o offload.Options, got, want result, bound float64) {
	t.Helper()
	d := distance(t, got, want) / ulp
	t.Logf("%s: %.1f ulp", describe(o), d)
	if !(d <= bound) {
		t.Errorf("%s: differs from train's by %.1f ulp", describe(o), d)
	}
}

// A GPT in pieces, its head tied to the token table, learns what the whole GPT does in plain Go.
func TestGPT(t *testing.T) {
	c := gpt.Config{Layers: 2, Width: 8, Heads: 2, Seq: 8, Vocab: 128, NoBias: true, Norm: gpt.RMSNorm, Tied: true}
	text, err := gpt.Reference().Batches(c, 2)
	if err != nil {
		t.Fatal(err)
	}
	of := func(step int) (inputs, targets *tensors.Tensor) {
		inputs, targets, err := text.Step(step)
		if err != nil {
			t.Fatal(err)
		}
		return inputs, targets
	}
	m, err := c.Chain()
	if err != nil {
		t.Fatal(err)
	}
	o := offload.Options{Optimizer: host, Update: host, Activations: host, Prefetch: 1}
	near(t, o, learn(t, start(t, m, momentum, o), of, 2), plainly(t, c, momentum, precision.Policy{}, of, 2), 64)
}

// The pieces are the whole for every architecture: the same parameters in the same order, and the same loss to the bit.
func TestGPTPieces(t *testing.T) {
	for i := range 16 {
		c := gpt.Config{Layers: 3, Width: 8, Heads: 2, Seq: 4, Vocab: 5, Tied: i&1 != 0, Gated: i&2 != 0}
		if i&4 != 0 {
			c.Positions = gpt.Rotary
		}
		if i&8 != 0 {
			c.Norm, c.NoBias = gpt.RMSNorm, true
		}
		m, err := c.Chain()
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Validate(); err != nil {
			t.Error(err)
		}
		if got, want := fmt.Sprint(m.Params()), fmt.Sprint(c.Params()); got != want {
			t.Fatalf("%+v: parameters %s, want %s", c, got, want)
		}
		both := func(in []*graph.Node) []*graph.Node {
			n := len(in) - 2
			p, x, y := c.Params().Nodes(in[:n]), in[n], in[n+1]
			return []*graph.Node{m.Loss(p, x, y), c.Loss(p, x, y)}
		}
		values, err := m.Init()
		if err != nil {
			t.Fatal(err)
		}
		x, y := tensors.FromValue([][]int32{{0, 1, 2, 3}}), tensors.FromValue([][]int32{{1, 2, 3, 4}})
		loss, err := devicetest.CallOn(devicetest.PureGo(), both, append(values, x, y)...)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := loss[0].Value(), loss[1].Value(); got != want {
			t.Errorf("%+v: loss %v, the whole model's is %v", c, got, want)
		}
	}
}

// A chain may be a single block, and blocks may have no parameters.
func TestOddChains(t *testing.T) {
	whole := toy()
	scale := chain.Block{Name: "scale", Apply: func(_ params.Nodes, x, _, _ *graph.Node) *graph.Node { return graph.MulScalar(x, 0.5) }}
	again := scale
	again.Name = "again"
	bias := whole.Blocks[3].Params[1]
	one := chain.Block{Name: "one", Params: params.Tree{bias}, Apply: func(p params.Nodes, x, _, _ *graph.Node) *graph.Node {
		return graph.Mul(x, graph.ExpandLeftToRank(p.Get(bias.Name), 2))
	}}
	for name, blocks := range map[string][]chain.Block{"one": {one}, "without parameters": {scale, one, again}} {
		t.Run(name, func(t *testing.T) {
			m := whole
			m.Blocks = blocks
			m.Initial = func() ([]*tensors.Tensor, error) { return uniform(m.Params(), 1), nil }
			o := onHost[0]
			want := plainly(t, m, momentum, precision.Policy{}, toyBatch, 2)
			near(t, o, learn(t, start(t, m, momentum, o), toyBatch, 2), want, 32)
		})
	}
}

// In mixed precision the passes compute with bfloat16 copies of the parameters, which lie on the device; the master
// copies are with the states.
func TestMixedPrecision(t *testing.T) {
	const steps = 4
	bf16, err := precision.ParsePolicy("bf16")
	if err != nil {
		t.Fatal(err)
	}
	want := reference(t, toy(), momentum, bf16, toyBatch, steps)
	for _, o := range onHost {
		o.Precision = bf16
		run := start(t, toy(), momentum, o)
		near(t, o, learn(t, run, toyBatch, steps), want, 32)
		// 70 parameters: 2 bytes each on the device, and 4 of master copy and 4 of momentum.
		m := run.Memory()
		at := map[offload.Where]offload.Bytes{device: m.Device.Now, host: m.Host.Now}
		if p, s := at[device][offload.Parameters], at[o.Optimizer][offload.Optimizer]; p != 140 || s != 560 {
			t.Errorf("%s: %d bytes of parameters and %d of states, want 140 and 560: %+v", describe(o), p, s, m)
		}
	}
}
