package offload_test

import (
	"math"
	"testing"

	"github.com/shardbook/shardbook/internal/devicetest"
	shared "github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/offload"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/xla"
)

func TestRefused(t *testing.T) {
	fp16, err := precision.ParsePolicy("fp16")
	if err != nil {
		t.Fatal(err)
	}
	pure, err := precision.ParsePolicy("bf16-pure")
	if err != nil {
		t.Fatal(err)
	}
	pure.StochasticUpdate = true
	m := mesh(t, devicetest.One())
	two, err := devicetest.OpenOwn(t, 2).Mesh(xla.Axis("data", 2))
	if err != nil {
		t.Fatal(err)
	}
	changed := func(change func(m *chain.Model)) chain.Model {
		m := toy()
		change(&m)
		return m
	}
	for what, c := range map[string]struct {
		mesh  *xla.Mesh
		model chain.Model
		rule  optim.Rule
		o     offload.Options
		want  string
	}{
		"no mesh":       {nil, toy(), momentum, offload.Options{}, "mesh is nil"},
		"two devices":   {two, toy(), momentum, offload.Options{}, "several devices"},
		"no rule":       {m, toy(), nil, offload.Options{}, "no rule"},
		"wrong rule":    {m, toy(), optim.SGD(-1), offload.Options{}, "SGD.LR is -1"},
		"nowhere":       {m, toy(), momentum, offload.Options{Activations: 7}, "Activations is Where(7)"},
		"states afar":   {m, toy(), momentum, offload.Options{Update: host}, "Optimizer is Device"},
		"prefetch":      {m, toy(), momentum, offload.Options{Prefetch: -1}, "Prefetch is -1"},
		"bandwidth":     {m, toy(), momentum, offload.Options{Bandwidth: math.NaN()}, "Bandwidth is NaN"},
		"scaling":       {m, toy(), momentum, offload.Options{Precision: fp16}, "scales the loss"},
		"stochastic":    {m, toy(), momentum, offload.Options{Precision: pure}, "stochastically"},
		"no model":      {m, chain.Model{}, momentum, offload.Options{}, "no blocks"},
		"no criterion":  {m, changed(func(m *chain.Model) { m.Criterion = nil }), momentum, offload.Options{}, "no Criterion"},
		"no Apply":      {m, changed(func(m *chain.Model) { m.Blocks[1].Apply = nil }), momentum, offload.Options{}, `block #1, "h0"`},
		"one name":      {m, changed(func(m *chain.Model) { m.Blocks[2].Name = "h0" }), momentum, offload.Options{}, `block #2, "h0"`},
		"no parameter":  {m, changed(func(m *chain.Model) { m.Blocks[0].Params = params.Tree{{}} }), momentum, offload.Options{}, "has no name"},
		"two shapes":    {m, changed(func(m *chain.Model) { m.Blocks[3].Params[0].Shape.Dimensions = []int{4, 6} }), momentum, offload.Options{}, "another block in.w"},
		"two of a kind": {m, changed(func(m *chain.Model) { m.Blocks[2].Params = m.Blocks[2].Params[:1] }), momentum, offload.Options{}, `are of the kind "h"`},
		"noise":         {m, changed(func(m *chain.Model) { m.Noisy = true }), momentum, offload.Options{}, "has noise"},
		"products": {m, changed(func(m *chain.Model) { m.Matmul.Operands = precision.BF16 }), momentum, offload.Options{},
			"computes products"},
	} {
		if _, err := offload.New(c.mesh, c.model, c.rule, c.o); !matches(err, c.want) {
			t.Errorf("%s: error %v, want %q", what, err, c.want)
		}
	}
	inputs, targets := shared.Batch(0, 4)
	for want, model := range map[string]chain.Model{
		"but not one function": shared.Unlike(),
		"not this batch":       shared.Picky(),
	} {
		run, err := offload.New(m, model, optim.SGD(1), offload.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := run.Step(t.Context(), inputs, targets); !matches(err, want) {
			t.Errorf("error %v, want %q", err, want)
		}
		if err := run.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := (gpt.Config{}).Chain(); !matches(err, "Layers is 0") {
		t.Errorf("an empty configuration: %v", err)
	}
}
