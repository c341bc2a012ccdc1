package train_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
)

// TestBuffers: a buffer gets its new value, whatever happens to weights, and does not affect their clipping.
func TestBuffers(t *testing.T) {
	const f32 = dtypes.Float32
	scaled := precision.Policy{Params: f32, Compute: f32, Output: f32, Reduce: f32, Scaling: precision.Static(1024)}
	for _, c := range []struct {
		name string
		r    train.Recipe
	}{
		{"plain", train.Recipe{Optimizer: optim.SGD(0.1)}},
		{"scheduled", train.Recipe{Optimizer: optim.Scheduled(optim.AdamW(1e-2), optim.Warmup{Steps: 10})}},
		{"clipped", train.Recipe{Optimizer: optim.LAMB(1e-2), Clip: 0.01}},
		{"scaled", train.Recipe{Optimizer: optim.AdamW(1e-2), Clip: 0.01, Precision: scaled}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var norms []float64
			var weights [][]*tensors.Tensor
			var means [][]float32
			for _, times := range []float64{1, 1000} {
				c.r.Model = toy.Buffered(times)
				tree := c.r.Model.Params()
				mean, frozen := tree.Index("mean"), tree.Index("frozen")
				run := start(t, c.r)
				before := state(t, run)
				x, y := toy.Batch(0, 8)
				m := must.Get(run.Step(x, y))(t)
				after := state(t, run)
				if !after[frozen].Equal(before[frozen]) {
					t.Errorf("what is frozen is %s, it was %s", after[frozen], before[frozen])
				}
				some := must.Get(run.Params(0, "frozen", "mean"))(t)
				if len(some) != 2 || !some[0].Equal(after[frozen]) || !some[1].Equal(after[mean]) {
					t.Errorf("by name there are %v", some)
				}
				_, err := run.Params(0, "nothing")
				must.Refuse(t, "name", err, `no parameter "nothing"`)
				means = append(means, after[mean].Value().([]float32))
				norms = append(norms, m.GradNorm)
				weights = append(weights, slices.Delete(after[:len(tree):len(tree)], mean, mean+1))
			}
			if norms[0] != norms[1] {
				t.Errorf("norms %v: buffers count", norms)
			}
			for i, one := range means[0] { // which the old value, of about 1, would be seen in
				if off := means[1][i] - 1000*one; !(math.Abs(float64(off)) < 1e-3) || one == 0 {
					t.Errorf("means %v, and a thousand times as much: %v", means[0], means[1])
				}
			}
			for i, w := range weights[0] {
				if !w.Equal(weights[1][i]) {
					t.Errorf("parameter %d is %s where a buffer changes much, else %s", i, weights[1][i], w)
				}
			}
			for _, name := range c.r.State().Names() {
				if strings.HasPrefix(name, "mean.") || strings.HasPrefix(name, "frozen.") {
					t.Errorf("the optimizer keeps %s of a buffer", name)
				}
			}
		})
	}
}
