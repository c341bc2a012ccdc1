package precision

import (
	"errors"
	"fmt"
	"math"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/params"
)

// Scaling is loss scaling (Micikevicius et al. 2018, "Mixed Precision Training", §3.2): the loss is multiplied by a
// scale, so that small gradients do not underflow, and the gradients are divided by it before use. A step whose
// gradients are not all finite is skipped. The zero Scaling does not scale.
//
// In a step, call Scale on the loss; compute the gradients; all-reduce them; call Finite and Unscale; update; call
// Select for parameters and optimizer states, and Update. A step that clips gradients must also check that their norm
// is finite (graph.LogicalAnd of Finite and graph.IsFinite), since squares can overflow where gradients do not.
type Scaling struct {
	Initial float64 `json:"initial,omitempty"` // the initial scale; 0 does not scale
	// finite steps in a row after which the scale grows; 0 never changes it
	Interval int     `json:"interval,omitempty"`
	Growth   float64 `json:"growth,omitempty"`  // the factor by which it grows
	Backoff  float64 `json:"backoff,omitempty"` // the factor after a skipped step; the scale stays at least 1
}

// Static returns scaling by a constant.
func Static(scale float64) Scaling { return Scaling{Initial: scale} }

// Dynamic returns scaling that starts at 65536, doubles after 2000 finite steps and halves after a skipped one, as
// PyTorch's GradScaler does by default.
func Dynamic() Scaling { return Scaling{Initial: 65536, Interval: 2000, Growth: 2, Backoff: 0.5} }

// largestScale keeps scales finite and their reciprocals normal.
const largestScale = 0x1p126

// Validate returns an error that names the first invalid setting.
func (s Scaling) Validate() error {
	switch {
	case s == (Scaling{}):
		return nil
	case !(s.Initial >= 1 && s.Initial <= largestScale):
		return fmt.Errorf("precision: Scaling.Initial is %g: set it to at least 1 and at most 2¹²⁶", s.Initial)
	case s.Interval == 0 && (s.Growth != 0 || s.Backoff != 0):
		return fmt.Errorf("precision: Scaling.Growth is %g and Backoff %g with an Interval of 0: set Interval, or "+
			"both to 0 for a static scale", s.Growth, s.Backoff)
	case s.Interval < 0 || s.Interval > math.MaxInt32:
		return fmt.Errorf("precision: Scaling.Interval is %d: set it to a number of steps, or to 0 for a static scale",
			s.Interval)
	case s.Interval > 0 && !(s.Growth >= 1 && s.Growth <= largestScale):
		return fmt.Errorf("precision: Scaling.Growth is %g: set it to at least 1 and at most 2¹²⁶, such as 2", s.Growth)
	case s.Interval > 0 && !(s.Backoff > 0 && s.Backoff <= 1):
		return fmt.Errorf("precision: Scaling.Backoff is %g: set it to more than 0 and at most 1, such as 0.5",
			s.Backoff)
	}
	return nil
}

// States lists the states between steps: none without scaling; else "scale", a float32 scalar, and, unless it is
// static, "good", the number of finite steps since the scale last changed, an int32 scalar.
func (s Scaling) States() params.Tree {
	return params.Tree{params.New("scale", dtypes.Float32), params.New("good", dtypes.Int32)}[:s.count()]
}

// Start returns the values of the states before the first step.
func (s Scaling) Start() []*tensors.Tensor {
	return []*tensors.Tensor{tensors.FromScalar(float32(s.Initial)), tensors.FromScalar(int32(0))}[:s.count()]
}

// count is the number of states.
func (s Scaling) count() int {
	switch {
	case s.Initial == 0:
		return 0
	case s.Interval == 0:
		return 1
	}
	return 2
}

// Scale returns the loss times the scale. It panics if the loss has a half type, which most scales overflow, or the
// states are not those of States.
func (s Scaling) Scale(loss *graph.Node, states []*graph.Node) *graph.Node {
	if s.mustFit(states); len(states) == 0 {
		return loss
	}
	if loss.DType() != dtypes.Float32 && loss.DType() != dtypes.Float64 {
		panic(fmt.Errorf("precision: a loss of type %s to scale: convert it to float32", loss.DType()))
	}
	return graph.Mul(loss, graph.ConvertDType(states[0], loss.DType()))
}

// Unscale returns the gradients divided by the scale, in float32 or, for float64, in that: a half type would underflow.
// It panics if the states are not those of States.
func (s Scaling) Unscale(grads, states []*graph.Node) []*graph.Node {
	s.mustFit(states)
	unscaled := make([]*graph.Node, len(grads))
	for i, g := range grads {
		unscaled[i] = Widen(g)
		if len(states) > 0 {
			unscaled[i] = graph.Div(unscaled[i], graph.ConvertDType(states[0], unscaled[i].DType()))
		}
	}
	return unscaled
}

// Finite returns a boolean scalar: whether no gradient has an infinity or a NaN. Devices with different gradients must
// combine their results, or their states diverge. It panics without gradients.
func Finite(grads []*graph.Node) *graph.Node {
	if len(grads) == 0 {
		panic(errors.New("precision: Finite without gradients: give at least one"))
	}
	var all *graph.Node
	for _, g := range grads {
		finite := graph.LogicalAll(graph.IsFinite(g))
		if all == nil {
			all = finite
		} else {
			all = graph.LogicalAnd(all, finite)
		}
	}
	return all
}

// Update returns the states after a step, given the result of [Finite]. It panics if the states are not those of
// States.
func (s Scaling) Update(states []*graph.Node, finite *graph.Node) []*graph.Node {
	if s.mustFit(states); s.Interval == 0 {
		return states
	}
	g, scale := finite.Graph(), states[0]
	number := func(x float64) *graph.Node { return graph.Const(g, float32(x)) }
	none := graph.Const(g, int32(0))
	good := graph.Where(finite, graph.Add(states[1], graph.Const(g, int32(1))), none)
	grow := graph.GreaterOrEqual(good, graph.Const(g, int32(s.Interval)))
	larger := graph.Min(graph.Mul(scale, number(s.Growth)), number(largestScale))
	smaller := graph.Max(graph.Mul(scale, number(s.Backoff)), number(1))
	return []*graph.Node{
		graph.Where(finite, graph.Where(grow, larger, scale), smaller),
		graph.Where(grow, none, good),
	}
}

// Select returns the new values if the step was finite, else the old ones. It panics if they differ in number or shape.
func Select(finite *graph.Node, updated, old []*graph.Node) []*graph.Node {
	if len(updated) != len(old) {
		panic(fmt.Errorf("precision: %d new values for %d old ones: give equally many", len(updated), len(old)))
	}
	selected := make([]*graph.Node, len(old))
	for i := range old {
		if !updated[i].Shape().Equal(old[i].Shape()) {
			panic(fmt.Errorf("precision: new value %d has shape %s, the old one %s", i, updated[i].Shape(),
				old[i].Shape()))
		}
		selected[i] = graph.Where(finite, updated[i], old[i])
	}
	return selected
}

// mustFit panics if scaling is invalid or the states are not those of States.
func (s Scaling) mustFit(states []*graph.Node) {
	if err := s.Validate(); err != nil {
		panic(err)
	}
	if err := params.Check(s.States(), states); err != nil {
		panic(fmt.Errorf("precision: states of loss scaling: %w", err))
	}
}
