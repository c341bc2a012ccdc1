package pipeline_test

import (
	"fmt"
	"testing"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// A second implementation of asynchronous training, as plain as possible: lists of versions of each stage's
// parameters, full models made of them, and the papers' formulas.

// free is a recipe of four blocks without shared parameters, and an optimizer without states.
func free() train.Recipe {
	return train.Recipe{Model: toy.Layers(4, false), Optimizer: optim.SGD(freeRate)}
}

const freeRate = 0.5

// history is, for each stage, the versions of its parameters so far; the papers' w⁽¹⁾ is the first.
type history struct {
	stages   [][]int // the parameters of each
	versions [][][][]float32
}

// version is the papers' w⁽ᵛ⁾ of a stage; before the first there was none, and the first is used.
func (h *history) version(stage, v int) [][]float32 { return h.versions[stage][max(v, 1)-1] }

// learn makes each stage's next version of the newest one.
func (h *history) learn(grads [][]float32) {
	for stage, params := range h.stages {
		newest := h.versions[stage][len(h.versions[stage])-1]
		next := make([][]float32, len(params))
		for k, at := range params {
			for i, w := range newest[k] {
				next[k] = append(next[k], w-freeRate*grads[at][i])
			}
		}
		h.versions[stage] = append(h.versions[stage], next)
	}
}

// slope computes gradients of the full model on one device.
type slope struct {
	t       *testing.T
	program *xla.Portable
}

func newSlope(t *testing.T, backend *xla.Backend) slope {
	t.Helper()
	model := free().Model
	n := len(model.Params())
	program := must.Get(xla.CompilePortable(backend, func(in []*graph.Node) []*graph.Node {
		return graph.Gradient(model.Loss(model.Params().Nodes(in[:n]), in[n], in[n+1]), in[:n]...)
	}))(t)
	t.Cleanup(program.Close)
	return slope{t, program}
}

// of returns the gradients for a micro-batch, where each stage has a version of its own.
func (s slope) of(h *history, inputs, targets *tensors.Tensor, versionOf func(stage int) int) [][]float32 {
	s.t.Helper()
	tree := free().Model.Params()
	args := make([]any, len(tree), len(tree)+2)
	for stage, params := range h.stages {
		for k, at := range params {
			args[at] = tensors.FromFlatDataAndDimensions(h.version(stage, versionOf(stage))[k],
				tree[at].Shape.Dimensions...)
		}
	}
	out, err := s.program.Call(0, append(args, inputs, targets)...)
	if err != nil {
		s.t.Fatal(err)
	}
	var grads [][]float32
	for _, g := range out {
		grads = append(grads, tensors.MustCopyFlatData[float32](g))
	}
	return grads
}

// rowsOf cuts micro-batch i of m out of a tensor.
func rowsOf(t *tensors.Tensor, i, m int) *tensors.Tensor {
	flat, dims := tensors.MustCopyFlatData[float32](t), t.Shape().Clone().Dimensions
	n := len(flat) / m
	dims[0] /= m
	return tensors.FromFlatDataAndDimensions(flat[i*n:(i+1)*n], dims...)
}

// asynchronously trains the free recipe in steps that begin with an empty pipeline.
func asynchronously(t *testing.T, gradient slope, kind pipeline.Kind, cut []int, m, every, steps int,
	batches traintest.Batches) result {
	t.Helper()
	model, n := free().Model.(chain.Model), len(cut)
	initial := must.Get(model.Init())(t)
	all, _ := model.Owners()
	h := &history{}
	block := 0
	for _, size := range cut {
		var params []int
		var values [][]float32
		for range size {
			params = append(params, all[block]...)
			block++
		}
		for _, at := range params {
			values = append(values, tensors.MustCopyFlatData[float32](initial[at]))
		}
		h.stages, h.versions = append(h.stages, params), append(h.versions, [][][]float32{values})
	}
	for step := range steps {
		for s := range h.versions {
			h.versions[s] = h.versions[s][len(h.versions[s])-1:]
		}
		inputs, targets := batches(step)
		for T := 1; T <= m/every; T++ { // the papers count from 1
			var mean [][]float32
			for i := range every {
				micro := (T-1)*every + i
				grads := gradient.of(h, rowsOf(inputs, micro, m), rowsOf(targets, micro, m), func(stage int) int {
					switch kind {
					case pipeline.KindPipeDream: // ∇f(w₁⁽ᵗ⁻ⁿ⁺¹⁾, w₂⁽ᵗ⁻ⁿ⁺²⁾, …, wₙ⁽ᵗ⁾), Narayanan et al. 2019, §3.3
						return T - n + stage + 1
					case pipeline.KindPipeDreamVertical: // ∇f(w₁⁽ᵗ⁻ⁿ⁺¹⁾, w₂⁽ᵗ⁻ⁿ⁺¹⁾, …), there
						return T - n + 1
					}
					return T - 1 // ∇f(W⁽ᵗ⁻¹⁾), Narayanan et al. 2021, §3.1
				})
				for k, g := range grads {
					if i == 0 {
						mean = append(mean, make([]float32, len(g)))
					}
					for j, v := range g {
						mean[k][j] += v / float32(every)
					}
				}
			}
			h.learn(mean)
		}
	}
	r := result{params: traintest.Named{}}
	for stage, params := range h.stages {
		newest := h.versions[stage][len(h.versions[stage])-1]
		for k, at := range params {
			spec := model.Params()[at]
			r.params[spec.Name] = tensors.FromFlatDataAndDimensions(newest[k], spec.Shape.Dimensions...)
		}
	}
	return r
}

// TestAsynchronous compares PipeDream, with both choices of versions, and PipeDream-2BW with the papers' formulas, and
// with synchronous training, which gives other results. A rank stores as many versions as its schedule says.
func TestAsynchronous(t *testing.T) {
	const steps, m = 2, 8
	backend, batches := devices(t), toy.Batches(m*microRows)
	gradient := newSlope(t, backend)
	synchronous := alone(t, backend, free(), steps, batches)
	for _, cut := range [][]int{{4}, {1, 3}, {1, 2, 1}, {1, 1, 1, 1}} {
		for _, kind := range []pipeline.Kind{pipeline.KindPipeDream, pipeline.KindPipeDreamVertical, pipeline.Kind2BW} {
			name := fmt.Sprintf("%s with the cut %v", kind, cut)
			s := scheduled(t, kind, len(cut), m)
			o := pipeline.Options{Schedule: s, Cut: cut, Recompute: len(cut) == 3, Fused: len(cut)%2 == 0}
			run := start(t, backend, free(), o)
			var got result
			got.train(t, run, steps, batches)
			near(t, name, got, asynchronously(t, gradient, kind, cut, m, s.Every, steps, batches))
			if off := traintest.Apart(t, synchronous.params, got.params); !(off > 100*bound) {
				t.Errorf("%s: only %g units from synchronous training", name, off)
			}
			if run.Steps() != steps {
				t.Errorf("%s: %d steps", name, run.Steps())
			}
			kept := must.Get(s.WeightVersions())(t)
			most, block := int64(0), 0
			for r, n := range cut { // Memory is that of the rank that has most
				own := int64(0)
				for range n {
					own += free().Model.(chain.Model).Blocks[block].Params.Bytes()
					block++
				}
				most = max(most, own*int64(kept[r][r]))
			}
			if got := run.Memory()[memest.Parameters]; got != most {
				t.Errorf("%s: %d bytes of parameters, want %d in versions %v", name, got, most, kept)
			}
			must.Do(t, run.Close())
		}
	}
}
