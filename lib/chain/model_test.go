package chain_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// withLoss is a chain whose last block has the loss.
func withLoss() chain.Model {
	m := toy.Model(true)
	last, criterion := &m.Blocks[len(m.Blocks)-1], m.Criterion
	apply := last.Apply
	last.Loss = func(p params.Nodes, x, targets, key, row *graph.Node) *graph.Node {
		return criterion(apply(p, x, key, row), targets)
	}
	last.Apply, m.Criterion = nil, nil
	return m
}

// whole is a model as a chain of one block.
func whole(t *testing.T, m traintest.Whole) chain.Model {
	t.Helper()
	one, err := chain.Of(m)
	if err != nil {
		t.Fatal(err)
	}
	return one
}

// TestLosses has the loss in the last block, and all of a model in one block: the loss and the gradients of the chain
// that both were made of.
func TestLosses(t *testing.T) {
	m := toy.Model(true)
	values, err := m.Init()
	if err != nil {
		t.Fatal(err)
	}
	fp32, err := precision.ParsePolicy("fp32")
	if err != nil {
		t.Fatal(err)
	}
	inputs, targets := toy.Batch(0, 4)
	of := func(m chain.Model, keep bool) []*tensors.Tensor {
		t.Helper()
		if err := m.Validate(); err != nil {
			t.Fatal(err)
		}
		w := walk{chain.Passes{Model: m, Precision: fp32, Keep: keep}, nil}
		out, err := devicetest.CallOn(devicetest.WithBarriers(), func(in []*graph.Node) []*graph.Node {
			n := len(in) - 2
			return append(w.whole(in[:n], in[n], in[n+1]), w.through(in[:n], in[n], in[n+1], keep)...)
		}, append(values, inputs, targets)...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	want := of(m, true)
	forms := map[string]chain.Model{"in the last block": withLoss(), "whole": whole(t, traintest.Whole{Model: m})}
	for name, m := range forms {
		for _, keep := range []bool{false, true} {
			for i, v := range of(m, keep) {
				x, y := tensors.MustCopyFlatData[float32](want[i]), tensors.MustCopyFlatData[float32](v)
				if off := apart(x, y); off > 1e-6 {
					t.Errorf("%s, keep %v: value %d has an error of %g of the largest element", name, keep, i, off)
				}
			}
		}
	}
}

// TestOf takes models as chains.
func TestOf(t *testing.T) {
	one := whole(t, traintest.Whole{Model: toy.Model(false)})
	if len(one.Blocks) != 1 || one.Noisy || len(one.Params()) != len(toy.Model(false).Params()) {
		t.Errorf("%d blocks, noisy %v, %d parameters", len(one.Blocks), one.Noisy, len(one.Params()))
	}
	m, err := chain.Of(noise{traintest.Whole{Model: toy.Model(false)}})
	if err != nil || !m.Noisy || m.CheckBatch(nil, nil) == nil {
		t.Errorf("a model with noise, which refuses each batch: %v, %v", m, err)
	}
	if _, err := chain.Of(3); err == nil || !strings.Contains(err.Error(), "int is not a model: give a train.Model") {
		t.Errorf("a number: %v", err)
	}
}

// noise is a model with noise that is no chain.
type noise struct{ traintest.Whole }

func (n noise) NoisyLoss(p params.Nodes, inputs, targets, _, _ *graph.Node) *graph.Node {
	return n.Loss(p, inputs, targets)
}

func (noise) CheckBatch(_, _ *tensors.Tensor) error { return errors.New("not this") }

// TestRefused lists models that are refused, and losses when a graph is built.
func TestRefused(t *testing.T) {
	early, none, rows, count := withLoss(), toy.Model(false), toy.Model(false), toy.Model(false)
	early.Blocks[1].Loss = early.Blocks[3].Loss
	none.Criterion = nil
	rows.Criterion = func(y, _ *graph.Node) *graph.Node { return y }
	count.Criterion = func(y, _ *graph.Node) *graph.Node { return graph.ScalarOne(y.Graph(), dtypes.Int32) }
	for name, c := range map[string]struct {
		m    chain.Model
		want string
	}{
		"a loss before the end":  {early, `block "h0" has a Loss, but block "h1" follows it`},
		"no loss":                {none, "no Criterion"},
		"a loss for each row":    {rows, "the loss has shape (Float32)[4, 3], want a float scalar: return the mean"},
		"a loss that is a count": {count, "the loss has shape (Int32), want a float scalar"},
	} {
		err := c.m.Validate()
		if err == nil {
			err = build(c.m)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}

// TestPanics has blocks and the criterion panic: the error names the one that did.
func TestPanics(t *testing.T) {
	broken := errors.New("broken on purpose")
	for name, c := range map[string]struct {
		change func(m *chain.Model)
		want   string
	}{
		"a block": {func(m *chain.Model) {
			m.Blocks[2].Apply = func(params.Nodes, *graph.Node, *graph.Node, *graph.Node) *graph.Node { panic(broken) }
		}, `block "h1": broken on purpose`},
		"the last block": {func(m *chain.Model) {
			*m = withLoss()
			m.Blocks[3].Loss = func(params.Nodes, *graph.Node, *graph.Node, *graph.Node, *graph.Node) *graph.Node {
				panic(broken)
			}
		}, `block "out": broken on purpose`},
		"the criterion": {func(m *chain.Model) {
			m.Criterion = func(*graph.Node, *graph.Node) *graph.Node { panic(broken) }
		}, "the criterion: broken on purpose"},
	} {
		m := toy.Model(false)
		c.change(&m)
		if err := step(m); err == nil || err.Error() != "train: step 0: "+c.want || !errors.Is(err, broken) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
		passes := chain.Passes{Model: m, Precision: precision.Policy{Compute: dtypes.Float32}}
		var kinds chain.Kinds
		inputs, _ := toy.Batch(0, 4)
		err := kinds.Check(devicetest.One().Text, passes, inputs.Shape())
		if name == "a block" && (err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, broken)) {
			t.Errorf("%s, by its passes: error %v, want %q", name, err, c.want)
		}
	}
}

// step makes a step on one device.
func step(m chain.Model) error {
	mesh, err := devicetest.One().Mesh(xla.Axis(train.Axis, 1))
	if err != nil {
		return err
	}
	run, err := train.New(mesh, train.Recipe{Model: m, Optimizer: optim.SGD(1)})
	if err != nil {
		return err
	}
	defer run.Close()
	_, err = run.Step(toy.Batch(0, 4))
	return err
}

// build builds the graph of a toy's loss.
func build(m chain.Model) error {
	values, err := m.Init()
	if err != nil {
		return err
	}
	inputs, targets := toy.Batch(0, 4)
	_, err = devicetest.CallOn(devicetest.PureGo(), func(in []*graph.Node) []*graph.Node {
		n := len(in) - 2
		return []*graph.Node{m.Loss(m.Params().Nodes(in[:n]), in[n], in[n+1])}
	}, append(values, inputs, targets)...)
	return err
}

// TestKinds gives a block the kind of one that is another function: with another number, another table, which is too
// large for GoMLX to store, or another gradient.
func TestKinds(t *testing.T) {
	table := func(at int) (values []float32) {
		values = make([]float32, 48)
		values[at] = 1
		return values
	}
	for name, c := range map[string]struct {
		change func(y *graph.Node, i int) *graph.Node
		want   string
	}{
		"the same": {func(y *graph.Node, _ int) *graph.Node { return graph.MulScalar(y, 2) }, ""},
		"a number": {func(y *graph.Node, i int) *graph.Node { return graph.MulScalar(y, float64(i)) }, "dense<2.0>"},
		"a table": {func(y *graph.Node, i int) *graph.Node {
			return graph.Add(y, graph.Slice(graph.Reshape(graph.Const(y.Graph(), table(i)), 8, 6),
				graph.AxisRange(0, 4)))
		}, "stablehlo.constant"},
		"a gradient": {func(y *graph.Node, i int) *graph.Node {
			if i == 2 {
				return graph.StopGradient(y)
			}
			return y
		}, "dense<0.0>"},
	} {
		m := toy.Layers(5, false)
		for i := 1; i < 4; i++ {
			b := &m.Blocks[i]
			apply := b.Apply
			b.Apply = func(p params.Nodes, x, key, row *graph.Node) *graph.Node {
				return c.change(apply(p, x, key, row), i)
			}
		}
		fp32, _ := precision.ParsePolicy("fp32")
		var kinds chain.Kinds
		inputs, _ := toy.Batch(0, 4)
		err := kinds.Check(devicetest.One().Text, chain.Passes{Model: m, Precision: fp32}, inputs.Shape())
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), `blocks "h0" and "h1" are of the kind "h", but not one function`)) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}
