package pipeline_test

import (
	"fmt"
	"testing"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/pipeline/schedule"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/xla"
)

// A second implementation of asynchronous training, as plain as it can be: lists of versions of each stage's parameters, whole
// models made of them, and the papers' formulas.

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

// slope computes gradients of the whole model on one device.
type slope struct {
	t       *testing.T
	program *xla.Portable
}

func newSlope(t *testing.T) slope {
	t.Helper()
	model := freeRecipe().Model
	n := len(model.Params())
	program, err := xla.CompilePortable(devices(), func(in []*graph.Node) []*graph.Node {
		return graph.Gradient(model.Loss(model.Params().Nodes(in[:n]), in[n], in[n+1]), in[:n]...)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(program.Close)
	return slope{t, program}
}

// of returns the gradients for a micro-batch, where each stage has a version of its own.
func (s slope) of(h *history, b rank.MicroBatch, versionOf func(stage int) int) [][]float32 {
	s.t.Helper()
	tree := freeRecipe().Model.Params()
	args := make([]any, len(tree), len(tree)+2)
	for stage, params := range h.stages {
		for k, at := range params {
			args[at] = tensors.FromFlatDataAndDimensions(h.version(stage, versionOf(stage))[k], tree[at].Shape.Dimensions...)
		}
	}
	out, err := s.program.Call(0, append(args, b.Inputs, b.Targets)...)
	if err != nil {
		s.t.Fatal(err)
	}
	var grads [][]float32
	for _, g := range out {
		grads = append(grads, tensors.MustCopyFlatData[float32](g))
	}
	return grads
}

// asynchronously trains the free recipe in steps that begin with an empty pipeline.
func asynchronously(t *testing.T, kind schedule.Kind, cut []int, m, every, steps int, batches batchOf) result {
	t.Helper()
	model, n := freeRecipe().Model, len(cut)
	initial, err := model.Init()
	if err != nil {
		t.Fatal(err)
	}
	all, _ := freeChain().Homes()
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
	gradient := newSlope(t)
	for step := range steps {
		for s := range h.versions {
			h.versions[s] = h.versions[s][len(h.versions[s])-1:]
		}
		inputs, targets := batches(step)
		parts, err := rank.MicroBatches(inputs, targets, 0, 1, m)
		if err != nil {
			t.Fatal(err)
		}
		for T := 1; T <= m/every; T++ { // the papers count from 1
			var mean [][]float32
			for i := range every {
				grads := gradient.of(h, parts[(T-1)*every+i], func(stage int) int {
					switch kind {
					case schedule.KindPipeDream: // ∇f(w₁⁽ᵗ⁻ⁿ⁺¹⁾, w₂⁽ᵗ⁻ⁿ⁺²⁾, …, wₙ⁽ᵗ⁾), Narayanan et al. 2019, §3.3
						return T - n + stage + 1
					case schedule.KindPipeDreamVertical: // ∇f(w₁⁽ᵗ⁻ⁿ⁺¹⁾, w₂⁽ᵗ⁻ⁿ⁺¹⁾, …), there
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
	r := result{params: map[string]*tensors.Tensor{}}
	for stage, params := range h.stages {
		newest := h.versions[stage][len(h.versions[stage])-1]
		for k, at := range params {
			spec := model.Params()[at]
			r.params[spec.Name] = tensors.FromFlatDataAndDimensions(newest[k], spec.Shape.Dimensions...)
		}
	}
	return r
}

// TestAsynchronous holds PipeDream, with both ways to choose versions, and PipeDream-2BW against the papers' formulas, and
// against synchronous training, which learns something else. A rank keeps as many versions as its schedule says.
func TestAsynchronous(t *testing.T) {
	const steps, m = 2, 8
	batches := toyBatches(m * microRows)
	synchronous := plain(t, freeEngine(t), m, 1, steps, batches)
	for _, cut := range [][]int{{4}, {1, 3}, {1, 2, 1}, {1, 1, 1, 1}} {
		for _, kind := range []schedule.Kind{schedule.KindPipeDream, schedule.KindPipeDreamVertical, schedule.Kind2BW} {
			name := fmt.Sprintf("%s with the cut %v", kind, cut)
			s, recorder := newSchedule(t, kind, len(cut), m, 0), trace.New()
			o := pipeline.Options{Schedule: s, Cut: cut, Recompute: len(cut) == 3, Trace: recorder}
			got := training{engine: freeEngine(t), options: o, steps: steps, batches: batches}.run(t)
			near(t, name, got, asynchronously(t, kind, cut, m, s.Every, steps, batches))
			if off := got.apart(t, synchronous); !(off > 100*bound) {
				t.Errorf("%s: only %g units from synchronous training", name, off)
			}
			kept, err := s.KeptVersions()
			if err != nil {
				t.Fatal(err)
			}
			for r := range cut {
				if most := highest(recorder.Trace(), r, "weight versions"); most != int64(kept[r][r]) {
					t.Errorf("%s: rank %d keeps %d versions, want %d", name, r, most, kept[r][r])
				}
			}
		}
	}
}

// highest is the largest value of a rank's counter.
func highest(t trace.Trace, rank int, name string) (most int64) {
	for _, c := range t.Counters {
		if c.Rank == rank && c.Name == name {
			most = max(most, c.Value)
		}
	}
	return most
}
