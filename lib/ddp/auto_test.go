package ddp_test

import (
	"testing"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// TestInGraph trains with one all-reduce in the graph, and with the compiler's, with dropout, which drops the same
// values whichever device has the example, and checks the compiled collectives.
func TestInGraph(t *testing.T) {
	backend := devicetest.Open(t, 4)
	c := tiny
	c.Dropout = 0.2
	recipe := train.Recipe{Model: c, Optimizer: optim.SGD(0.1), Seed: 3}
	var losses [][]float64
	for _, form := range []struct {
		name  string
		world int
		new   func(*xla.Mesh, train.Recipe) (*train.Run, error)
	}{{"one device", 1, train.New}, {"SPMD", 4, ddp.NewSPMD}, {"AutoSharding", 4, ddp.NewAuto}} {
		mesh := must.Get(backend.Mesh(xla.Axis(train.Axis, form.world)))(t)
		run := must.Get(form.new(mesh, recipe))(t)
		losses = append(losses, stepped(t, run, 4, textSource(t, c, 8)))
		report := must.Get(run.Collectives())(t)
		var reduced int64
		for _, op := range report {
			if op.Kind == xla.AllReduce {
				reduced += op.Bytes
			} else if op.Bytes > 16 { // a device asks for its rank, for dropout
				t.Errorf("%s: an operation %+v", form.name, op)
			}
		}
		// The gradients, and the loss; AutoSharding may reduce more than once what it uses twice.
		if least := c.Params().Bytes() + 4; form.world > 1 && (reduced < least || reduced > least*5/4) ||
			form.world == 1 && reduced > 0 {
			t.Errorf("%s reduces %d bytes, the gradients and the loss are %d: %v", form.name, reduced, least, report)
		}
	}
	for step := range losses[0] {
		for _, other := range losses[1:] {
			if diff := other[step]/losses[0][step] - 1; !(diff < 2e-6 && diff > -2e-6) {
				t.Errorf("step %d: losses %v and %v", step, other[step], losses[0][step])
			}
		}
	}
}

// stepped trains for some steps, and returns the losses.
func stepped(t *testing.T, run *train.Run, steps int, batches source) (losses []float64) {
	t.Helper()
	for step := range steps {
		inputs, targets, err := batches(step)
		must.Do(t, err)
		m := must.Get(run.Step(inputs, targets))(t)
		losses = append(losses, m.Loss)
	}
	return losses
}
