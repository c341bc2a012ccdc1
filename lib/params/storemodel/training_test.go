package storemodel_test

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/ml/layers"
	"github.com/gomlx/gomlx/ml/layers/norm"
	"github.com/gomlx/gomlx/ml/layers/regularizer"
	"github.com/gomlx/gomlx/ml/model"
	gomlx "github.com/gomlx/gomlx/ml/train"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/params/storemodel"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
)

// plainly trains on one device by SGD.
func plainly(t *testing.T, m train.Model, p precision.Policy) train.Trainer {
	t.Helper()
	recipe := train.Recipe{Model: m, Optimizer: optim.SGD(rate), Precision: p}
	run := must.Get(parallel.New(context.Background(), devicetest.One(), recipe, parallel.Layout{},
		parallel.Options{}))(t)
	t.Cleanup(func() { run.Close() })
	return run
}

// TestBatchNorm trains batch normalization and a regularizer as GoMLX does, with and without loss scaling, evaluates as
// GoMLX does, and writes the averages back to GoMLX.
func TestBatchNorm(t *testing.T) {
	// A new value is computed as the old one less the change, and other programs round differently.
	const bound = 1e-5
	const f32 = dtypes.Float32
	ctx, backend := context.Background(), devicetest.One()
	net := cnn(0)
	theirs, ours := newStore(), newStore()
	alone := newModel(t, backend, ours, whole(net), pictures, labels)
	parted := must.Get(storemodel.NewChain(backend, newStore(), net, crossEntropy, pictures, labels))(t)
	if got, want := parted.Params().Names(), alone.Params().Names(); !slices.Equal(got, want) {
		t.Fatalf("in layers, the parameters are %q, want %q", got, want)
	}
	buffers := alone.BufferNames()
	if len(buffers) != 6 {
		t.Errorf("buffers %q, want 3 of each batch normalization", buffers)
	}
	is := func(name string) bool { return slices.Contains(buffers, name) }
	weights := slices.DeleteFunc(alone.Params().Names(), is)
	var batches [][2]*tensors.Tensor
	for i := range steps {
		batches = append(batches, [2]*tensors.Tensor{first(images(i)), second(images(i))})
	}
	want := byGoMLX(t, backend, theirs, whole(net), weights, batches)
	evaluation := must.Get(model.NewExec(backend, theirs, func(scope *model.Scope, x, y *graph.Node) *graph.Node {
		loss := crossEntropy(net.Build(scope, x), y)
		return graph.Add(loss, gomlx.GetRegularizationLoss(x.Graph()))
	}))(t)
	evaluated := must.Get(evaluation.Call1(images(steps)))(t)
	scaled := precision.Policy{Params: f32, Compute: f32, Output: f32, Reduce: f32, Scaling: precision.Static(1000)}
	for name, run := range map[string]train.Trainer{
		"whole":  plainly(t, alone, precision.Policy{}),
		"layers": plainly(t, parted, precision.Policy{}),
		"scaled": plainly(t, parted, scaled),
	} {
		for i, batch := range batches {
			m := must.Get(run.Step(ctx, batch[0], batch[1]))(t)
			if w := float64(tensors.ToScalar[float32](want[i][0])); !(math.Abs(m.Loss-w) < bound) {
				t.Errorf("%s: step %d: loss %g, want %g", name, i, m.Loss, w)
			}
		}
		values := must.Get(run.Params(ctx))(t)
		for _, s := range alone.Params() {
			want := theirs.GetVariable("/" + strings.ReplaceAll(s.Name, ".", "/")).MustValue()
			if !values.Get(s.Name).InDelta(want, bound) {
				t.Errorf("%s: %s is %s, want %s", name, s.Name, values[s.Name], want)
			}
		}
		loss := must.Get(run.Evaluate(ctx, first(images(steps)), second(images(steps))))(t)
		if w := float64(tensors.ToScalar[float32](evaluated)); !(math.Abs(loss-w) < bound) {
			t.Errorf("%s: evaluated: loss %g, want %g", name, loss, w)
		}
		if name != "whole" {
			continue
		}
		list := must.Get(values.List(alone.Params()))(t)
		must.Do(t, alone.Write(list))
		count := ours.GetVariable("/second/batch_normalization/avg_weight").MustValue()
		if got := count.Value().([]float32)[0]; got != steps {
			t.Errorf("GoMLX's store has averages over %v batches, want %d", got, steps)
		}
	}
}

// TestNoise: random numbers depend on the key and the row, and there are none without a key.
func TestNoise(t *testing.T) {
	backend := devicetest.One()
	const rows, rate = 64, 0.25
	ones := func(scope *model.Scope, x *graph.Node) *graph.Node { // whatever the weight
		w := scope.VariableWithShape("w", number).NodeValue(x)
		return graph.Add(graph.OnesLike(x), graph.Mul(w, graph.ZerosLike(x)))
	}
	layer := func(scope *model.Scope, x *graph.Node) *graph.Node {
		return layers.DropoutStatic(scope, ones(scope, x), rate)
	}
	mean := func(y, _ *graph.Node) *graph.Node { return graph.ReduceAllMean(y) }
	shape := shapes.Make(dtypes.Float32, rows, 16)
	a := storemodel.Layer{Name: "a", Build: layer}
	one := must.Get(storemodel.NewChain(backend, model.NewStore(), storemodel.Layers{a}, mean, shape, number))(t)
	// The fraction of elements that two layers, with the same inputs, both drop or keep.
	two := must.Get(storemodel.NewChain(backend, model.NewStore(), storemodel.Layers{
		a, {Name: "b", Build: func(scope *model.Scope, x *graph.Node) *graph.Node {
			dropped := func(x *graph.Node) *graph.Node {
				return graph.ConvertDType(graph.Equal(x, graph.ZerosLike(x)), dtypes.Float32)
			}
			return graph.Mul(dropped(x), dropped(layer(scope, x)))
		}}}, mean, shape, number))(t)
	loss := func(m *storemodel.Model, key, row *tensors.Tensor) float64 {
		t.Helper()
		args := append(initial(t, m), tensors.FromShape(shape), tensors.FromShape(number))
		n := len(m.Params())
		if key != nil {
			args = append(args, key, row)
		}
		out := run(t, backend, func(in []*graph.Node) []*graph.Node {
			p := m.Params().Nodes(in[:n])
			if key == nil {
				return []*graph.Node{m.Loss(p, in[n], in[n+1])}
			}
			return []*graph.Node{m.NoisyLoss(p, in[n], in[n+1], in[n+2], in[n+3])}
		}, args...)
		return float64(tensors.ToScalar[float32](out[0]))
	}
	u32 := func(x uint32) *tensors.Tensor { return tensors.FromScalar(x) }
	seen := map[float64]bool{}
	for key := range uint32(4) {
		for _, row := range []uint32{0, 64, 128} {
			got := loss(one, u32(key), u32(row))
			// The mean over 1024 elements, each 0 or 4/3, is 1 within 5 standard deviations of √(1/3/1024).
			if again := loss(one, u32(key), u32(row)); again != got || !(math.Abs(got-1) < 0.09) {
				t.Errorf("key %d, row %d: a mean of %g, then %g, want the same of about 1", key, row, got, again)
			}
			seen[got] = true
		}
	}
	if len(seen) < 9 { // two of 12 numbers of elements may be equal
		t.Errorf("means %v for 4 keys and 3 rows", seen)
	}
	if got := loss(one, nil, nil); got != 1 {
		t.Errorf("without a key, the mean is %g, want 1", got)
	}
	// A quarter of a quarter, within 5 standard deviations; with the same random numbers it would be a quarter.
	if got := loss(two, u32(1), u32(0)); !(math.Abs(got-rate*rate) < 0.04) {
		t.Errorf("two layers drop %g of the elements at once, want %g", got, rate*rate)
	}
}

// TestFrozenWeights: a frozen layer does not change a bit, also on several devices.
func TestFrozenWeights(t *testing.T) {
	backend, store := devicetest.Open(t, 4), newStore()
	newModel(t, backend, store, whole(cnn(0)), pictures, labels)
	frozen := store.GetVariable("/first/conv/weights")
	frozen.SetTrainable(false)
	parted := must.Get(storemodel.NewChain(backend, store, cnn(0), crossEntropy, pictures, labels))(t)
	for _, l := range []parallel.Layout{{}, {Data: 4, ZeRO: 3}, {Pipe: 2}} {
		got := finish(t, start(t, backend, parted, l), images)
		if value := got.params.Get("first.conv.weights"); !value.Equal(frozen.MustValue()) {
			t.Errorf("%+v: the frozen weights are %s, they were %s", l, value, frozen.MustValue())
		}
		other := store.GetVariable("/second/conv/weights").MustValue()
		if value := got.params.Get("second.conv.weights"); value.Equal(other) {
			t.Errorf("%+v: the others are as they were", l)
		}
	}
}

// TestHalfPrecisionBatchNorm: averages in a half type are refused, and layers that compute them in float32 get float32
// variables, whatever other layers compute in.
func TestHalfPrecisionBatchNorm(t *testing.T) {
	ctx, backend := context.Background(), devicetest.One()
	bf16, err := precision.ParsePolicy("bf16")
	must.Do(t, err)
	net := func(in dtypes.DType) storemodel.Loss {
		return func(scope *model.Scope, inputs, targets *graph.Node) *graph.Node {
			x := layers.Dense(scope.In("first"), graph.Reshape(inputs, inputs.Shape().Dim(0), -1), false, 8)
			own := x.DType()
			if in != dtypes.InvalidDType {
				x = graph.ConvertDType(x, in)
			}
			x = norm.BatchNorm(scope, x, -1).Momentum(0.5).Done()
			x = layers.Dense(scope.In("last"), graph.ConvertDType(x, own), true, classes)
			return crossEntropy(graph.ConvertDType(x, dtypes.Float32), targets)
		}
	}
	plain := newModel(t, backend, newStore(), net(dtypes.InvalidDType), pictures, labels)
	recipe := train.Recipe{Model: plain, Optimizer: optim.SGD(rate), Precision: bf16}
	run, err := parallel.New(ctx, backend, recipe, parallel.Layout{}, parallel.Options{})
	if err == nil {
		_, err = run.Step(ctx, first(images(0)), second(images(0)))
		must.Do(t, run.Close())
	}
	for _, want := range []string{`changes the variable "/batch_normalization/`, "convert the layer's input"} {
		if !matches(err, want) {
			t.Errorf("averages in bfloat16: error %v, want %q", err, want)
		}
	}
	m := newModel(t, backend, newStore(), net(dtypes.Float32), pictures, labels)
	var all []traintest.Named
	for _, p := range []precision.Policy{{}, bf16} {
		run := plainly(t, m, p)
		for i := range steps {
			_, err := run.Step(ctx, first(images(i)), second(images(i)))
			must.Do(t, err)
		}
		values := must.Get(run.Params(ctx))(t)
		all = append(all, values)
	}
	for _, name := range m.BufferNames() { // bfloat16 has 8 bits
		if !all[1].Get(name).InDelta(all[0].Get(name), 0.02) {
			t.Errorf("%s is %s in bfloat16, %s in float32", name, all[1][name], all[0][name])
		}
	}
}

// TestCarried: what a layer adds to the loss, for its averages or its regularizer, passes through the layers after it.
func TestCarried(t *testing.T) {
	net := cnn(0)
	penalized := storemodel.Layer{Name: "penalized", Build: func(scope *model.Scope, x *graph.Node) *graph.Node {
		scope.SetParam(regularizer.ParamL2, 0.1)
		return layers.Dense(scope, x, true, 2)
	}}
	for _, own := range []storemodel.Layer{net[0], penalized} {
		tanh := func(_ *model.Scope, x *graph.Node) *graph.Node { return graph.Tanh(x) }
		through := storemodel.Layers{own, {Name: "tanh", Build: tanh},
			net[2]}
		parted := must.Get(storemodel.NewChain(devicetest.One(), newStore(), through, crossEntropy, pictures,
			labels))(t)
		alone := newModel(t, devicetest.One(), newStore(), whole(through), pictures, labels)
		want := finish(t, start(t, devicetest.One(), alone, parallel.Layout{}), images)
		compare(t, want, finish(t, start(t, devicetest.One(), parted, parallel.Layout{}), images))
	}
}

// TestSharedVariable: two layers share a variable by its path in the store.
func TestSharedVariable(t *testing.T) {
	backend := devicetest.Open(t, 4)
	shared := func(scope *model.Scope, x *graph.Node) *graph.Node {
		common := scope.Store().Scope("/common")
		x = graph.Reshape(x, x.Shape().Dim(0), -1)
		return layers.Dense(common, layers.Dense(scope, x, true, 36), true, 36)
	}
	layers := storemodel.Layers{{Name: "a", Build: shared}, {Name: "b", Build: shared}, cnn(0)[2]}
	parted := must.Get(storemodel.NewChain(backend, newStore(), layers, crossEntropy, pictures, labels))(t)
	alone := newModel(t, backend, newStore(), whole(layers), pictures, labels)
	got := parted.Params().Names()
	if want := alone.Params().Names(); !slices.Equal(got, want) || !slices.Contains(got, "common.dense.weights") {
		t.Fatalf("parameters %q, want %q", got, want)
	}
	want := finish(t, start(t, backend, alone, parallel.Layout{}), images)
	compare(t, want, finish(t, start(t, backend, parted, parallel.Layout{Pipe: 2}), images))
}

func TestNewChainErrors(t *testing.T) {
	backend := devicetest.One()
	identity := func(_ *model.Scope, x *graph.Node) *graph.Node { return x }
	dense := func(scope *model.Scope, x *graph.Node) *graph.Node { return layers.Dense(scope, x, false, 2) }
	normal := func(scope *model.Scope, x *graph.Node) *graph.Node { return norm.BatchNorm(scope, x, -1).Done() }
	nothing := func(*model.Scope, *graph.Node) *graph.Node { return nil }
	panics := func(*model.Scope, *graph.Node) *graph.Node { panic("a reason") }
	same := func(y, _ *graph.Node) *graph.Node { return y }
	sum := func(y, _ *graph.Node) *graph.Node { return graph.ReduceAllMean(graph.ConvertDType(y, dtypes.Float32)) }
	for _, c := range []struct {
		name      string
		layers    storemodel.Layers
		criterion func(y, targets *graph.Node) *graph.Node
		want      string
	}{
		{"no layers", nil, sum, "no layers"},
		{"no criterion", storemodel.Layers{{Name: "a", Build: dense}}, nil, "no criterion"},
		{"no name", storemodel.Layers{{Build: dense}}, sum, "layer #0"},
		{"no function", storemodel.Layers{{Name: "a", Build: dense}, {Name: "b"}}, sum, `layer #1, "b"`},
		{"one name", storemodel.Layers{{Name: "a", Build: dense}, {Name: "a", Build: dense}}, sum, `"a"`},
		{"nil output", storemodel.Layers{{Name: "a", Build: nothing}, {Name: "b", Build: dense}}, sum,
			`building layer "a"`},
		{"panic", storemodel.Layers{{Name: "a", Build: dense}, {Name: "b", Build: panics}}, sum,
			`building layer "b" for an input of shape (Float32)[6, 2]: a reason`},
		{"no loss", storemodel.Layers{{Name: "a", Build: dense}}, same, "not that of a float scalar"},
		{"nothing to train", storemodel.Layers{{Name: "a", Build: identity}}, sum, "uses no trainable variables"},
		{"integers", storemodel.Layers{{Name: "a", Build: func(scope *model.Scope, x *graph.Node) *graph.Node {
			return graph.ConvertDType(normal(scope, dense(scope, x)), dtypes.Int32)
		}}, {Name: "b", Build: identity}}, sum, `layer "a" returns (Int32)[6, 2]`},
	} {
		_, err := storemodel.NewChain(backend, newStore(), c.layers, c.criterion, mlpInputs, mlpTargets)
		must.Refuse(t, c.name, err, c.want)
	}
}

// TestRandomInference: a model with random numbers in inference gets the same ones each time.
func TestRandomInference(t *testing.T) {
	backend := devicetest.One()
	m := newModel(t, backend, newStore(), func(scope *model.Scope, x, _ *graph.Node) *graph.Node {
		y := graph.Add(x, scope.RandomNormal(x.Graph(), x.Shape()))
		return graph.ReduceAllMean(graph.Mul(y, scope.VariableWithValue("w", float32(1)).NodeValue(x)))
	}, mlpInputs, mlpTargets)
	var losses []any
	for range 2 {
		out := run(t, backend, func(in []*graph.Node) []*graph.Node {
			return []*graph.Node{m.Loss(params.Nodes{"w": in[0]}, in[1], in[1])}
		}, append(initial(t, m), tensors.FromShape(mlpInputs))...)
		losses = append(losses, out[0].Value())
	}
	if losses[0] != losses[1] || losses[0] == float32(0) {
		t.Errorf("losses %v, want the same, and not 0", losses)
	}
}
