package chain_test

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

var small = gpt.Config{Layers: 3, Width: 8, Heads: 2, Seq: 4, Vocab: 11, Tied: true, Dropout: 0.3}

// A GPT's token table, tied to its head, is owned by the embedding; the blocks between share programs.
func ExampleModel() {
	c := small
	c.Dropout = 0 // with which each block would have noise of its own
	m := must.Value(c.Chain())
	all, owned := m.Owners()
	for i, b := range m.Blocks {
		fmt.Printf("%-5s %2d parameters, owns %2d; programs of %s\n", b.Name, len(all[i]), len(owned[i]),
			m.Blocks[m.SharedPrograms()[i]].Name)
	}
	// Output:
	// embed  2 parameters, owns  2; programs of embed
	// h0    12 parameters, owns 12; programs of h0
	// h1    12 parameters, owns 12; programs of h0
	// h2    12 parameters, owns 12; programs of h0
	// head   3 parameters, owns  2; programs of head
}

// TestPasses runs chains block by block, once with backward passes as one program and once in two parts, of which all
// second parts come last: with dropout, a scaled loss, in two precisions, with the loss in the last block, and with all
// of a model in one block. Both compute the gradients of the model as one graph, and have equal bits.
func TestPasses(t *testing.T) {
	tokens, next := [][]int32{{1, 2, 3, 4}, {5, 6, 7, 8}}, [][]int32{{2, 3, 4, 5}, {6, 7, 8, 10}}
	gpt, mlp := must.Value(small.Chain()), toy.Model(true)
	for name, c := range map[string]struct {
		model, as chain.Model
		precision string
		bound     float64 // of the largest element
	}{
		"fp32": {gpt, gpt, "fp32", 1e-6}, "fp16": {gpt, gpt, "fp16", 4e-3},
		"a loss in the last block": {mlp, withLoss(), "fp32", 1e-6},
		"one block":                {mlp, must.Value(chain.Of(traintest.Whole{Model: mlp})), "fp32", 1e-6},
	} {
		inputs, targets := toy.Batch(0, 4)
		if len(c.model.Blocks) == len(gpt.Blocks) {
			inputs, targets = tensors.FromValue(tokens), tensors.FromValue(next)
		}
		w := walk{chain.Passes{Model: c.model, Precision: must.Value(precision.ParsePolicy(c.precision)), Keep: true},
			nil}
		out := must.Get(devicetest.CallOn(devicetest.WithBarriers(), func(in []*graph.Node) []*graph.Node {
			n := len(in) - 2
			out := w.whole(in[:n], in[n], in[n+1])
			w.Model = c.as
			out = slices.Concat(out, w.through(in[:n], in[n], in[n+1], false), w.through(in[:n], in[n], in[n+1], true))
			for i := range out {
				out[i] = graph.ConvertDType(out[i], dtypes.Float32)
			}
			return out
		}, append(must.Value(c.model.Init()), inputs, targets)...))(t)
		tree := append(params.Tree{params.New("loss", dtypes.Float32)}, c.model.Params()...)
		for i, s := range tree {
			want, got := tensors.MustCopyFlatData[float32](out[i]), tensors.MustCopyFlatData[float32](out[len(tree)+i])
			if off := apart(want, got); !(off <= c.bound) {
				t.Errorf("%s: %s differs by %g of the largest element", name, s, off)
			}
			if !out[len(tree)+i].Equal(out[2*len(tree)+i]) {
				t.Errorf("%s: %s is not the same in parts", name, s)
			}
		}
	}
}

// apart is the largest difference, as a share of the largest element.
func apart(want, got []float32) float64 {
	var largest, worst float64
	for k := range want {
		largest = max(largest, math.Abs(float64(want[k])))
		worst = max(worst, math.Abs(float64(want[k])-float64(got[k])))
	}
	return worst / cmp.Or(largest, 1)
}

// walk computes a chain's loss and gradients in several ways.
type walk struct {
	chain.Passes
	scaling []*graph.Node
}

// noise returns a key and a row, and creates a graph's states of loss scaling.
func (w *walk) noise(g *graph.Graph) (key, row *graph.Node) {
	w.scaling = nil
	for _, s := range w.Precision.Scaling.Start() {
		w.scaling = append(w.scaling, graph.Const(g, s.Value()))
	}
	return graph.Const(g, uint32(7)), graph.Const(g, uint32(2))
}

// whole differentiates the model as one graph.
func (w walk) whole(weights []*graph.Node, x, targets *graph.Node) []*graph.Node {
	key, row := w.noise(x.Graph())
	computed := precision.Cast(weights, w.Precision.Compute)
	loss := w.Model.NoisyLoss(w.Model.Params().As(w.Precision.Compute).Nodes(computed), x, targets, key, row)
	toward := w.Precision.Scaling.Scale(graph.ConvertDType(loss, w.Precision.Output), w.scaling)
	return append([]*graph.Node{loss}, graph.Gradient(toward, computed...)...)
}

// through goes through the blocks, each as in a program of its own.
func (w walk) through(weights []*graph.Node, x, targets *graph.Node, parts bool) []*graph.Node {
	key, row := w.noise(x.Graph())
	all, _ := w.Model.Owners()
	n := len(w.Model.Blocks)
	operands, kept, above, left := make([]chain.Operands, n), make([][]*graph.Node, n), make([]*graph.Node, n),
		make([][]*graph.Node, n)
	for i := range n {
		operands[i] = chain.Operands{X: foreign(x)[0], Key: key, Row: row}
		for _, at := range all[i] {
			operands[i].Weights = append(operands[i].Weights, weights[at])
		}
		if i == n-1 {
			operands[i].Targets = targets
		}
		x, kept[i] = w.Forward(i, operands[i])
		kept[i] = foreign(kept[i]...)
	}
	if len(slices.Concat(kept...)) == 0 {
		panic("the forward passes save nothing")
	}
	sums := append([]*graph.Node{x}, make([]*graph.Node, len(weights))...)
	add := func(i int, grads []*graph.Node) {
		for k, at := range all[i] {
			if sum := &sums[at+1]; *sum == nil {
				*sum = grads[k]
			} else {
				*sum = graph.Add(*sum, grads[k])
			}
		}
	}
	for i := n - 1; i >= 0; i-- {
		var below *graph.Node
		if parts {
			below, left[i] = w.BackwardInput(i, operands[i], kept[i], above[i], w.scaling)
			left[i] = foreign(left[i]...)
		} else {
			var grads []*graph.Node
			below, grads = w.Backward(i, operands[i], kept[i], above[i], w.scaling)
			add(i, grads)
		}
		if i > 0 {
			above[i-1] = foreign(below)[0]
		} else if below != nil {
			panic("the first block has a gradient of its input")
		}
	}
	for i := n - 1; parts && i >= 0; i-- {
		add(i, w.BackwardWeights(i, operands[i], kept[i], above[i], w.scaling, left[i]))
	}
	return sums
}

// foreign are nodes as another program gets them.
func foreign(nodes ...*graph.Node) (same []*graph.Node) {
	for _, n := range nodes {
		same = append(same, graph.Identity(graph.StopGradient(n)))
	}
	return same
}

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

// TestOf takes models as chains.
func TestOf(t *testing.T) {
	one := must.Value(chain.Of(traintest.Whole{Model: toy.Model(false)}))
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
		must.Refuse(t, name, err, c.want)
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
	inputs, targets := toy.Batch(0, 4)
	_, err := devicetest.CallOn(devicetest.PureGo(), func(in []*graph.Node) []*graph.Node {
		n := len(in) - 2
		return []*graph.Node{m.Loss(m.Params().Nodes(in[:n]), in[n], in[n+1])}
	}, append(must.Value(m.Init()), inputs, targets)...)
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

// layer is a block by hand: tanh(x·w).
func layer(name string, in, out int) chain.Block {
	return chain.Block{
		Name:   name,
		Params: params.Tree{params.New(name+".w", dtypes.Float32, in, out)},
		Apply: func(p params.Nodes, x, _, _ *graph.Node) *graph.Node {
			return graph.Tanh(graph.Dot(x, p.Get(name+".w")).Product())
		},
	}
}

// A model of one's own as a chain of blocks, which any engine can train: lib/ddp, lib/zero, lib/pipeline, lib/parallel.
func ExampleModel_blocks() {
	m := chain.Model{
		Blocks: []chain.Block{layer("first", 3, 4), layer("last", 4, 1)},
		Criterion: func(y, targets *graph.Node) *graph.Node {
			return graph.ReduceAllMean(graph.Square(graph.Sub(y, targets)))
		},
	}
	m.Initial = func() ([]*tensors.Tensor, error) { return params.Zeros(m.Params()) }
	if err := m.Validate(); err != nil {
		panic(err)
	}
	for _, spec := range m.Params() {
		fmt.Println(spec)
	}
	// The model is one graph function, too.
	loss := must.Value(devicetest.CallOn(devicetest.PureGo(), func(in []*graph.Node) []*graph.Node {
		return []*graph.Node{m.Loss(m.Params().Nodes(in[:2]), in[2], in[3])}
	}, append(must.Value(m.Init()), tensors.FromValue([][]float32{{1, 2, 3}}), tensors.FromValue([][]float32{{2}}))...))
	fmt.Println("loss", loss[0].Value())
	// Output:
	// first.w (Float32)[3, 4]
	// last.w (Float32)[4, 1]
	// loss 4
}
