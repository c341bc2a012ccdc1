package optim

import (
	"fmt"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
)

// Elementwise lists states that have one number for each element of a part of a parameter, in the type that optimizers
// compute in. It is for optimizers of other packages: Elementwise(param, part, "m", "v").
func Elementwise(param params.Spec, part Part, names ...string) []State {
	p := pieceOf(param, part)
	states := make([]State, len(names))
	for i, name := range names {
		states[i] = p.state(param, name, computeType(param))
	}
	return states
}

// Total sums x, which has the dimensions of the part, over the full parameter: each element counts once. It returns a
// scalar of x's type, the same on all ranks. It is for optimizers of other packages, builds a graph, and panics if the
// part lacks what it needs.
func (u Update) Total(x *graph.Node) *graph.Node { return u.piece().total(x) }

// begin checks an update, and returns the parameter and the gradient in the type to compute in.
func (u Update) begin(r Optimizer) (param, grad *graph.Node) {
	if err := r.Validate(); err != nil {
		panic(err)
	}
	part := fullIfNil(u.Part)
	if err := part.check(u.Spec.Shape.Dimensions); err != nil {
		panic(fmt.Errorf("optim: the part of %q: %w", u.Spec.Name, err))
	}
	want := part.dims(u.Spec.Shape.Dimensions)
	for _, x := range []struct {
		what string
		node *graph.Node
	}{{"parameter", u.Param}, {"gradient", u.Grad}} {
		if got := x.node.Shape(); !slices.Equal(got.Dimensions, want) || !got.DType.IsFloat() {
			panic(fmt.Errorf("optim: the %s %q has shape %s: it must have dimensions %v and a floating-point type",
				x.what, u.Spec.Name, got, want))
		}
	}
	if err := params.Check(specs(r.States(u.Spec, u.Part)), u.States); err != nil {
		panic(fmt.Errorf("optim: the states of %q: %w", u.Spec.Name, err))
	}
	if !u.Step.IsScalar() {
		panic(fmt.Errorf("optim: the step has shape %s: it must be a scalar", u.Step.Shape()))
	}
	if u.Rate != nil && !u.Rate.IsScalar() {
		panic(fmt.Errorf("optim: the rate has shape %s: it must be a scalar", u.Rate.Shape()))
	}
	t := computeType(u.Spec)
	return graph.ConvertDType(u.Param, t), graph.ConvertDType(u.Grad, t)
}

// descend returns param − lr·Rate·change in the parameter's own type.
func (u Update) descend(param, change *graph.Node, lr float64) *graph.Node {
	step := graph.MulScalar(change, lr)
	if u.Rate != nil {
		step = graph.Mul(step, graph.ConvertDType(u.Rate, step.DType()))
	}
	return graph.ConvertDType(graph.Sub(param, step), u.Param.DType())
}

func (u Update) piece() piece { return pieceOf(u.Spec, u.Part) }

// computeType is the type in which optimizers compute, and store what is not quantized.
func computeType(param params.Spec) dtypes.DType {
	if param.Shape.DType == dtypes.Float64 {
		return dtypes.Float64
	}
	return dtypes.Float32
}

// running is one step of a running mean: decay·mean + (1−decay)·x.
func running(mean, x *graph.Node, decay float64) *graph.Node {
	return graph.Add(graph.MulScalar(mean, decay), graph.MulScalar(x, 1-decay))
}

// decayed returns change + decay·param: the decoupled weight decay (Loshchilov & Hutter 2019, "Decoupled Weight Decay
// Regularization").
func decayed(change, param *graph.Node, decay float64) *graph.Node {
	return graph.Add(change, graph.MulScalar(param, decay))
}

// setting is one number of an optimizer and its range: from least, below limit.
type setting struct {
	name         string
	value        float64
	least, limit float64
}

// checkSettings returns an error that names the first setting out of its range.
func checkSettings(optimizer string, settings ...setting) error {
	for _, s := range settings {
		if !(s.value >= s.least && s.value < s.limit) { // so that NaN is out of range too
			return fmt.Errorf("optim: %s.%s is %g: set it to at least %g and less than %g",
				optimizer, s.name, s.value, s.least, s.limit)
		}
	}
	return nil
}
