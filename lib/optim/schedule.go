package optim

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
)

// Schedule is a learning rate schedule: a factor for each step, counted from 1. See [Scheduled].
type Schedule interface {
	// Validate returns an error that names the first invalid setting, with its value and what to do.
	Validate() error
	// At returns the factor of a step.
	At(step int) float64
	// Rate is At inside a graph: a float64 scalar for a scalar step of any integer or floating-point type.
	Rate(step *graph.Node) *graph.Node
}

// Constant is the same rate at every step; at least 0.
type Constant float64

// Validate implements [Schedule].
func (s Constant) Validate() error {
	return checkSettings("the schedule", setting{"Constant", float64(s), 0, math.Inf(1)})
}

// At implements [Schedule].
func (s Constant) At(int) float64 { return float64(s) }

// Rate implements [Schedule].
func (s Constant) Rate(step *graph.Node) *graph.Node {
	return graph.Scalar(step.Graph(), dtypes.Float64, float64(s))
}

// Warmup rises linearly over the first Steps steps: 1/Steps, 2/Steps, … to 1. Then it follows the schedule Then, whose
// first step is the next one; nil stays at 1.
type Warmup struct {
	Steps int
	Then  Schedule
}

// Validate implements [Schedule].
func (s Warmup) Validate() error {
	if err := positive("Warmup.Steps", s.Steps); err != nil || s.Then == nil {
		return err
	}
	return s.Then.Validate()
}

// At implements [Schedule].
func (s Warmup) At(step int) float64 {
	switch {
	case step <= s.Steps:
		return float64(step) / float64(s.Steps)
	case s.Then == nil:
		return 1
	}
	return s.Then.At(step - s.Steps)
}

// Rate implements [Schedule].
func (s Warmup) Rate(step *graph.Node) *graph.Node {
	t := graph.ConvertDType(step, dtypes.Float64)
	then := graph.ScalarOne(t.Graph(), t.DType())
	if s.Then != nil {
		then = s.Then.Rate(graph.AddScalar(t, -float64(s.Steps)))
	}
	rising := graph.DivScalar(t, float64(s.Steps))
	return graph.Where(graph.LessOrEqual(t, graph.Scalar(t.Graph(), t.DType(), float64(s.Steps))), rising, then)
}

// Cosine falls from 1 at step 1 to Floor after Steps steps along half a cosine wave (Loshchilov & Hutter 2017, "SGDR:
// Stochastic Gradient Descent with Warm Restarts", equation 5), and stays there. Floor is in [0,1].
type Cosine struct {
	Steps int
	Floor float64
}

// Validate implements [Schedule].
func (s Cosine) Validate() error {
	return checkDecay("Cosine", s.Steps, s.Floor)
}

// At implements [Schedule].
func (s Cosine) At(step int) float64 {
	return s.Floor + (1-s.Floor)*(1+math.Cos(math.Pi*progress(step, s.Steps)))/2
}

// Rate implements [Schedule].
func (s Cosine) Rate(step *graph.Node) *graph.Node {
	wave := graph.Cos(graph.MulScalar(progressNode(step, s.Steps), math.Pi))
	return graph.AddScalar(graph.MulScalar(graph.OnePlus(wave), (1-s.Floor)/2), s.Floor)
}

// Linear falls linearly from 1 at step 1 to Floor after Steps steps, and stays there. Floor is in [0,1].
type Linear struct {
	Steps int
	Floor float64
}

// Validate implements [Schedule].
func (s Linear) Validate() error { return checkDecay("Linear", s.Steps, s.Floor) }

// At implements [Schedule].
func (s Linear) At(step int) float64 { return 1 - (1-s.Floor)*progress(step, s.Steps) }

// Rate implements [Schedule].
func (s Linear) Rate(step *graph.Node) *graph.Node {
	return graph.OneMinus(graph.MulScalar(progressNode(step, s.Steps), 1-s.Floor))
}

// InverseSqrt is 1 for the first Steps steps t and then √(Steps/t). Times 1/√Steps it is the schedule of T5
// (Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", §3.1.2).
type InverseSqrt struct{ Steps int }

// Validate implements [Schedule].
func (s InverseSqrt) Validate() error { return positive("InverseSqrt.Steps", s.Steps) }

// At implements [Schedule].
func (s InverseSqrt) At(step int) float64 {
	return math.Sqrt(float64(s.Steps) / float64(max(step, s.Steps)))
}

// Rate implements [Schedule].
func (s InverseSqrt) Rate(step *graph.Node) *graph.Node {
	t := graph.MaxScalar(graph.ConvertDType(step, dtypes.Float64), float64(s.Steps))
	return graph.Sqrt(graph.MulScalar(graph.Reciprocal(t), float64(s.Steps)))
}

// Noam is the schedule of Vaswani et al. 2017, "Attention Is All You Need", equation 3: Width^−½·min(t^−½,
// t·Warmup^−1.5) at step t. It is a learning rate itself: use it with an optimizer whose LR is 1.
type Noam struct{ Width, Warmup int }

// Validate implements [Schedule].
func (s Noam) Validate() error {
	return cmp.Or(positive("Noam.Width", s.Width), positive("Noam.Warmup", s.Warmup))
}

// At implements [Schedule].
func (s Noam) At(step int) float64 {
	t := float64(step)
	return math.Min(1/math.Sqrt(t), t*math.Pow(float64(s.Warmup), -1.5)) / math.Sqrt(float64(s.Width))
}

// Rate implements [Schedule].
func (s Noam) Rate(step *graph.Node) *graph.Node {
	t := graph.ConvertDType(step, dtypes.Float64)
	rate := graph.Min(graph.Reciprocal(graph.Sqrt(t)), graph.MulScalar(t, math.Pow(float64(s.Warmup), -1.5)))
	return graph.DivScalar(rate, math.Sqrt(float64(s.Width)))
}

// progress is the fraction of a decay before a step, from 0 to 1.
func progress(step, steps int) float64 {
	return min(max(float64(step-1)/float64(steps), 0), 1)
}

func progressNode(step *graph.Node, steps int) *graph.Node {
	done := graph.AddScalar(graph.ConvertDType(step, dtypes.Float64), -1)
	return graph.ClipScalar(graph.DivScalar(done, float64(steps)), 0, 1)
}

// checkDecay checks the settings of a schedule that falls to floor after a number of steps.
func checkDecay(schedule string, steps int, floor float64) error {
	if !(floor >= 0 && floor <= 1) {
		return fmt.Errorf("optim: %s.Floor is %g: set it to 0 to 1", schedule, floor)
	}
	return positive(schedule+".Steps", steps)
}

// Scheduled returns an optimizer whose learning rate is multiplied by the schedule at each step. Weight decay that is
// proportional to the learning rate is multiplied with it.
func Scheduled(o Optimizer, schedule Schedule) Optimizer { return scheduled{o, schedule} }

type scheduled struct {
	optimizer Optimizer
	schedule  Schedule
}

func (r scheduled) Validate() error {
	if r.optimizer == nil || r.schedule == nil {
		return errors.New("optim: Scheduled lacks its optimizer or its schedule: give both")
	}
	return errors.Join(r.optimizer.Validate(), r.schedule.Validate())
}

func (r scheduled) States(param params.Spec, part Part) []State {
	if r.optimizer == nil {
		return nil
	}
	return r.optimizer.States(param, part)
}

func (r scheduled) block(param params.Spec) int { return blockOf(r.optimizer, param) }

func (r scheduled) Update(u Update) (*graph.Node, []*graph.Node) {
	if err := r.Validate(); err != nil {
		panic(err)
	}
	rate := r.schedule.Rate(u.Step)
	if u.Rate != nil {
		rate = graph.Mul(rate, graph.ConvertDType(u.Rate, rate.DType()))
	}
	u.Rate = rate
	return r.optimizer.Update(u)
}

// Group is a parameter group of [Grouped]: the parameters for which Has returns true, and their optimizer.
type Group struct {
	Has       func(param params.Spec) bool
	Optimizer Optimizer
}

// Grouped returns an optimizer that uses, for each parameter, the optimizer of the first group whose Has returns true,
// and rest for the others. For example, without weight decay for normalization scales and biases:
//
//	Grouped(AdamW(3e-4), Group{Named("*.g", "*.b"), Adam(3e-4)})
func Grouped(rest Optimizer, groups ...Group) Optimizer { return grouped{rest, slices.Clone(groups)} }

// Named selects parameters by name. A name may begin with "*", which matches anything.
func Named(names ...string) func(params.Spec) bool {
	return func(param params.Spec) bool {
		for _, name := range names {
			if end, any := strings.CutPrefix(name, "*"); name == param.Name || any &&
				strings.HasSuffix(param.Name, end) {
				return true
			}
		}
		return false
	}
}

type grouped struct {
	rest   Optimizer
	groups []Group
}

func (r grouped) Validate() error {
	if r.rest == nil {
		return errors.New("optim: Grouped has no optimizer for the rest: give one")
	}
	for i, g := range r.groups {
		if g.Has == nil || g.Optimizer == nil {
			return fmt.Errorf("optim: group #%d lacks its Has or its Optimizer: give both", i)
		}
		if err := g.Optimizer.Validate(); err != nil {
			return fmt.Errorf("optim: group #%d: %w", i, err)
		}
	}
	return r.rest.Validate()
}

// of returns a parameter's optimizer; nil if Grouped has none for the rest.
func (r grouped) of(param params.Spec) Optimizer {
	for _, g := range r.groups {
		if g.Has != nil && g.Has(param) {
			return g.Optimizer
		}
	}
	return r.rest
}

func (r grouped) States(param params.Spec, part Part) []State {
	if o := r.of(param); o != nil {
		return o.States(param, part)
	}
	return nil
}

func (r grouped) block(param params.Spec) int { return blockOf(r.of(param), param) }

func (r grouped) Update(u Update) (*graph.Node, []*graph.Node) {
	if err := r.Validate(); err != nil {
		panic(err)
	}
	return r.of(u.Spec).Update(u)
}
