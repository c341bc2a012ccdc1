package zero_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/offload"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/zero"
)

// deep is a chain of equal blocks, and a last one without parameters, whose inputs and outputs are vectors of the
// width.
func deep(blocks, width int) chain.Model {
	m := chain.Model{Criterion: func(y, targets *graph.Node) *graph.Node {
		return graph.ReduceAllMean(graph.Square(graph.Sub(y, targets)))
	}}
	for i := range blocks {
		name := fmt.Sprintf("h%d.w", i)
		m.Blocks = append(m.Blocks, chain.Block{Name: name[:len(name)-2], Kind: "h",
			Params: params.Tree{params.New(name, dtypes.Float32, width, width)},
			Apply: func(p params.Nodes, x, _, _ *graph.Node) *graph.Node {
				return graph.Add(x, graph.Tanh(graph.Dot(x, p.Get(name)).Product()))
			}})
	}
	m.Blocks = append(m.Blocks, chain.Block{Name: "loss",
		Apply: func(_ params.Nodes, x, _, _ *graph.Node) *graph.Node { return x }})
	m.Initial = func() (values []*tensors.Tensor, err error) {
		for i := range blocks {
			flat := make([]float32, width*width)
			for k := range flat {
				flat[k] = float32((k*7+i)%13-6) / float32(width)
			}
			values = append(values, tensors.FromFlatDataAndDimensions(flat, width, width))
		}
		return values, nil
	}
	return m
}

// needs is what a step of a deep chain needs while it runs, in bytes on each device.
func needs(t *testing.T, backend *xla.Backend, depth, width int, o zero.Options) int64 {
	t.Helper()
	const world = 4
	run := form{world, true, o}.start(t, backend, train.Recipe{Model: deep(depth, width), Optimizer: optim.SGD(0.1)})
	defer run.Close()
	x := tensors.FromFlatDataAndDimensions(make([]float32, world*width), world, width)
	_, err := run.Step(t.Context(), x, x)
	must.Do(t, err)
	return run.Memory()[memest.Temporary]
}

// TestDepth compares the memory of compiled steps of 5 and 10 equal blocks: in stage 3 five more blocks cost no more
// than the shards of their gradients and their activations for one example; each block gathered ahead costs one block's
// parameters.
func TestDepth(t *testing.T) {
	const width, world = 64, 4
	backend := devicetest.Open(t, 8)
	const block, row = width * width * 4, width * 4
	var near int64
	for _, o := range []zero.Options{{Stage: 3}, {Stage: 3, Recompute: true}} {
		shallow, deep := needs(t, backend, 5, width, o), needs(t, backend, 10, width, o)
		if more, most := deep-shallow, int64(5*(block/world+8*row)); more > most {
			t.Errorf("%+v: five blocks more need %d bytes more, want at most %d", o, more, most)
		}
		if most := int64(10*(block/world+8*row) + 3*block); deep > most {
			t.Errorf("%+v: 10 blocks need %d bytes, want at most %d: their parameters are %d", o, deep, most, 10*block)
		}
		if !o.Recompute {
			near = deep
		}
	}
	far := needs(t, backend, 10, width, zero.Options{Stage: 3, Prefetch: 2})
	if blocks := float64(far-near) / block; !(blocks > 1.5 && blocks < 2.5) {
		t.Errorf("two blocks ahead need %g blocks more", blocks)
	}
}

// TestCompilersOwn trains by NewAuto, and compares it with one device.
func TestCompilersOwn(t *testing.T) {
	const world, width, steps = 4, 8, 4
	backend := devicetest.Open(t, 8)
	mesh := must.Get(backend.Mesh(xla.Axis(train.Axis, world)))(t)
	recipe := train.Recipe{Model: deep(3, width), Optimizer: optim.AdamW(1e-2)}
	batches := func(step int) (*tensors.Tensor, *tensors.Tensor) {
		flat := make([]float32, world*width)
		for i := range flat {
			flat[i] = float32((i*7+step)%5) - 2
		}
		x := tensors.FromFlatDataAndDimensions(flat, world, width)
		return x, x
	}
	one, _ := traintest.Alone(t, backend, recipe, steps, batches)
	for _, stage := range []int{1, 3} {
		run := must.Get(zero.NewAuto(mesh, recipe, stage))(t)
		defer run.Close()
		for i := range steps {
			x, y := batches(i)
			must.Get(run.Step(x, y))(t)
		}
		list := must.Get(run.Params(0))(t)
		got := traintest.Named{}
		for i, s := range recipe.Model.Params() {
			got[s.Name] = list[i]
		}
		if off := traintest.Apart(t, one, got); !(off <= 4) {
			t.Errorf("stage %d: %g units from one device", stage, off)
		}
		total := must.Get(run.Probe(func(p params.Nodes, _ []*graph.Node) []*graph.Node {
			return []*graph.Node{graph.ReduceAllSum(p.Get("h0.w"))}
		}))(t)
		sum := must.Get(total.Call())(t)
		want := float32(0)
		for _, w := range tensors.MustCopyFlatData[float32](got["h0.w"]) {
			want += w
		}
		if off := float64(tensors.ToScalar[float32](sum[0]) - want); !(math.Abs(off) < 1e-5) {
			t.Errorf("stage %d: the parameters' sum is %v, want %v", stage, sum[0], want)
		}
		total.Close()
		held, params := run.BytesPerDevice(), recipe.Model.Params().Bytes()
		if want := map[int]int64{1: params, 3: params / world}[stage]; held["parameters"] != want ||
			held["optimizer"] != 2*params/world {
			t.Errorf("stage %d: a device holds %v of %d bytes of parameters", stage, held, params)
		}
		report := must.Get(run.Collectives())(t)
		if len(report) == 0 {
			t.Errorf("stage %d: the compiler made no collectives", stage)
		}
	}
}

// TestActivationsOnHost looks at the most that lies on a device: with the inputs of blocks on the host it is less by
// nearly all of them.
func TestActivationsOnHost(t *testing.T) {
	const depth, width, rows = 12, 8, 256
	peak := func(host bool) int64 {
		backend := devicetest.OpenOwn(t, 2)
		x := tensors.FromFlatDataAndDimensions(make([]float32, 2*rows*width), 2*rows, width)
		learned(t, backend, train.Recipe{Model: deep(depth, width), Optimizer: optim.SGD(0.1)},
			form{2, false, zero.Options{Stage: 3, Recompute: true, Offload: offload.Host{Activations: host,
				Prefetch: 1}}}, 1,
			func(int) (*tensors.Tensor, *tensors.Tensor) { return x, x })
		return backend.PeakBytes()[0]
	}
	const input = rows * width * 4
	if saved, least := peak(false)-peak(true), int64((depth-3)*input); saved < least {
		t.Errorf("the host takes %d bytes of activations, want at least %d", saved, least)
	}
}
