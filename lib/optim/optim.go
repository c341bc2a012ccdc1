// Package optim has optimizers as pure graph functions from a parameter, its gradient and its state to the new
// parameter and state.
//
// Nothing is stored: an [Optimizer] lists the state of a parameter by name and shape, and the caller holds it.
// Optimizers compute in float32 (in float64 for a float64 parameter), whatever the types of parameter and gradient, and
// return the new parameter in its own type.
//
// All optimizers also work on shards: a [Part] says which part of a parameter a rank has, and how to sum over the
// ranks. The result is that part of the full parameter's new value, up to float32 rounding, since sums have another
// order and XLA may fuse a multiply and an add differently in another shape. (Adam8bit also depends on its blocks: see
// Adam8bitOptimizer.)
//
//	[SGD]        momentum, Nesterov        [Scheduled]          learning rate schedules
//	[AdamW]      and [Adam]                [Grouped]            parameter groups
//	[Adam8bit]   AdamW in two bytes        [ClipTo]             gradient clipping
//	[Adafactor]  row and column means      [BytesPerParameter]  the memory of the states
//	[Lion]       signs                     [Parse]              an optimizer by its name
//	[LAMB]       large batches
package optim

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
)

// Optimizer updates parameters by their gradients.
type Optimizer interface {
	// Validate returns an error that names the first invalid setting, with its value and what to do.
	Validate() error

	// States lists the state of one part of a parameter (nil: the full one), in the order of Update; all of it starts
	// at zero ([params.Zeros]). Names extend the parameter's: "head.w.m" for "head.w". The part may lack its functions
	// and nodes. If it does not fit the parameter, the list has no meaning; [StatesOfParts] returns an error then.
	States(param params.Spec, part Part) []State

	// Update returns the parameter and its states after one step. It builds a graph, and panics if the optimizer is
	// invalid or the shapes do not fit.
	Update(u Update) (param *graph.Node, states []*graph.Node)
}

// Update is the input of an optimizer for one parameter at one step. Param may have another type than Spec: for
// example, a caller that rounds half-precision parameters itself passes and gets float32.
type Update struct {
	Spec        params.Spec   // the name and full shape of the parameter
	Part        Part          // the rank's part of it; nil: the full parameter
	Param, Grad *graph.Node   // of the part's dimensions, and any floating-point types
	States      []*graph.Node // as Optimizer.States lists them
	Step        *graph.Node   // a scalar of any integer or floating-point type, 1 for the first step
	Rate        *graph.Node   // a scalar that multiplies the learning rate; nil: 1
}

// State is one array of an optimizer's state for a part of a parameter.
type State struct {
	params.Spec // its name, and its shape on this rank
	// Axis is the axis along which the ranks' arrays, joined like the parts of the parameter, form the array of the
	// full parameter (for the scales of [Adam8bit], those of all parts: see [Joins]); -1 if every rank has the same
	// array.
	Axis int
}

// States lists the states of all parameters of a tree, in its order.
func States(r Optimizer, tree params.Tree) params.Tree {
	var all params.Tree
	for _, s := range tree {
		all = append(all, specs(r.States(s, nil))...)
	}
	return all
}

// StatesOfParts is [States] for one part of each parameter; a nil part is a full parameter. It returns an error if the
// number of parts is not that of the parameters, or one does not fit its parameter.
func StatesOfParts(r Optimizer, tree params.Tree, parts []Part) ([]State, error) {
	if len(parts) != len(tree) {
		return nil, fmt.Errorf("optim: %d parts for the %d parameters of the tree: give one for each, nil for a full "+
			"one", len(parts), len(tree))
	}
	var all []State
	for i, s := range tree {
		if err := fullIfNil(parts[i]).check(s.Shape.Dimensions); err != nil {
			return nil, fmt.Errorf("optim: the part of %q: %w", s.Name, err)
		}
		all = append(all, r.States(s, parts[i])...)
	}
	return all, nil
}

// BytesPerParameter returns the bytes of an optimizer's states per element of the parameters; 0 for an empty tree and
// NaN for an invalid one.
func BytesPerParameter(r Optimizer, tree params.Tree) float64 {
	if tree.Validate() != nil {
		return math.NaN()
	}
	return float64(States(r, tree).Bytes()) / max(1, float64(tree.Size()))
}

// Apply updates all parameters of a tree by [Optimizer.Update], with the states that [States] lists. Parameters and
// gradients are in the order of the tree and have its dimensions; their types may differ from it. It builds a graph,
// and panics if the lists do not fit the tree or the optimizer is invalid.
func Apply(r Optimizer, tree params.Tree, values, grads, states []*graph.Node,
	step *graph.Node) (newValues, newStates []*graph.Node) {
	return ApplyToParts(r, tree, make([]Part, len(tree)), values, grads, states, step)
}

// ApplyToParts is [Apply] for one part of each parameter, with the states that [StatesOfParts] lists.
func ApplyToParts(r Optimizer, tree params.Tree, parts []Part, values, grads, states []*graph.Node,
	step *graph.Node) (newValues, newStates []*graph.Node) {
	all, err := StatesOfParts(r, tree, parts)
	if err != nil {
		panic(err)
	}
	for _, list := range []struct {
		what      string
		got, want int
	}{{"parameters", len(values), len(tree)}, {"gradients", len(grads), len(tree)}, {"states", len(states), len(all)}} {
		if list.got != list.want {
			panic(fmt.Errorf("optim: %d %s for a tree of %d parameters: give %d", list.got, list.what, len(tree),
				list.want))
		}
	}
	for i, s := range tree {
		n := len(r.States(s, parts[i]))
		value, state := r.Update(Update{Spec: s, Part: parts[i], Param: values[i], Grad: grads[i], States: states[:n],
			Step: step})
		newValues, newStates = append(newValues, value), append(newStates, state...)
		states = states[n:]
	}
	return newValues, newStates
}

func specs(states []State) params.Tree {
	tree := make(params.Tree, len(states))
	for i, s := range states {
		tree[i] = s.Spec
	}
	return tree
}

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
	for what, x := range map[string]*graph.Node{"step": u.Step, "rate": u.Rate} {
		if x != nil && !x.IsScalar() {
			panic(fmt.Errorf("optim: the %s has shape %s: it must be a scalar", what, x.Shape()))
		}
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
			return fmt.Errorf("optim: %s.%s is %g: set it to at least %g and less than %g", optimizer, s.name, s.value,
				s.least, s.limit)
		}
	}
	return nil
}

func positive(setting string, value int) error {
	if value < 1 {
		return fmt.Errorf("optim: %s is %d: set it to at least 1", setting, value)
	}
	return nil
}

// Names lists the names that [Parse] knows, in alphabetical order.
func Names() []string { return slices.Sorted(maps.Keys(byName())) }

// Parse returns the optimizer with a name, in upper or lower case, a learning rate and its default settings. It returns
// an error for an unknown name or an invalid learning rate. "adafactor" takes 0 for its own rate.
func Parse(name string, lr float64) (Optimizer, error) {
	of, ok := byName()[strings.ToLower(name)]
	if !ok {
		return nil, fmt.Errorf("optim: there is no optimizer %q: choose one of %q", name, Names())
	}
	o := of(lr)
	if err := o.Validate(); err != nil {
		return nil, err
	}
	return o, nil
}

func byName() map[string]func(lr float64) Optimizer {
	return map[string]func(lr float64) Optimizer{
		"sgd":       func(lr float64) Optimizer { return SGD(lr) },
		"momentum":  func(lr float64) Optimizer { return SGDOptimizer{LR: lr, Momentum: 0.9} },
		"nesterov":  func(lr float64) Optimizer { return SGDOptimizer{LR: lr, Momentum: 0.9, Nesterov: true} },
		"adam":      func(lr float64) Optimizer { return Adam(lr) },
		"adamw":     func(lr float64) Optimizer { return AdamW(lr) },
		"adam8bit":  func(lr float64) Optimizer { return Adam8bit(lr) },
		"adafactor": func(lr float64) Optimizer { return Adafactor(lr) },
		"lion":      func(lr float64) Optimizer { return Lion(lr) },
		"lamb":      func(lr float64) Optimizer { return LAMB(lr) },
	}
}

// GlobalNorm returns the square root of the sum of the squares of all elements of all gradients: a float32 scalar. For
// shards, sum is an all-reduce over the ranks; for full gradients it is nil. A gradient that several ranks have would
// be counted by each: pass it to [SquareNorm] separately. GlobalNorm builds a graph, and panics if there are no
// gradients.
func GlobalNorm(grads []*graph.Node, sum func(*graph.Node) *graph.Node) *graph.Node {
	square := SquareNorm(grads)
	if sum != nil {
		square = sum(square)
	}
	return graph.Sqrt(square)
}

// NormOfParts is [GlobalNorm] for gradients of which a rank has parts: each element counts once, even if several ranks
// have it. A nil part is a full gradient that every rank has. It panics as GlobalNorm does.
func NormOfParts(tree params.Tree, parts []Part, grads []*graph.Node, sum func(*graph.Node) *graph.Node) *graph.Node {
	var full, sharded []*graph.Node
	for i, g := range grads {
		switch part := parts[i].(type) {
		case nil:
			full = append(full, g)
		case Cut:
			sharded = append(sharded, part.clean(g, tree[i].Shape.Dimensions))
		default: // gradients of padding are zero
			sharded = append(sharded, g)
		}
	}
	if len(full) == 0 {
		return GlobalNorm(sharded, sum)
	}
	square := SquareNorm(full)
	if len(sharded) > 0 {
		square = graph.Add(square, sum(SquareNorm(sharded)))
	}
	return graph.Sqrt(square)
}

// SquareNorm returns the sum of the squares of all elements of this rank's gradients: a float32 scalar, computed in
// float32. It builds a graph, and panics if there are no gradients.
func SquareNorm(grads []*graph.Node) *graph.Node {
	if len(grads) == 0 {
		panic(errors.New("optim: there are no gradients: give at least one"))
	}
	total := graph.ScalarZero(grads[0].Graph(), dtypes.Float32)
	for _, g := range grads {
		total = graph.Add(total, graph.ReduceAllSum(graph.Square(graph.ConvertDType(g, dtypes.Float32))))
	}
	return total
}

// ClipTo scales all gradients by one factor so that their global norm, a float32 scalar that [GlobalNorm] or
// [NormOfParts] computed, becomes at most max (Pascanu et al. 2013, "On the difficulty of training recurrent neural
// networks", algorithm 1). The gradients keep their types.
//
// If the norm is NaN or infinite, all gradients become NaN, so that the failure shows in the next parameters rather
// than as a step of zeros. A caller that prefers to skip such a step checks the norm.
//
// It builds a graph, and panics if max is less than 2⁻¹²⁶, the smallest normal float32.
func ClipTo(grads []*graph.Node, max float64, norm *graph.Node) []*graph.Node {
	if !(max >= 0x1p-126) || math.IsInf(max, 1) {
		panic(fmt.Errorf("optim: the gradients' largest norm is %g: give a number of at least 1.2e-38, such as 1", max))
	}
	g, t := norm.Graph(), norm.DType()
	scale := graph.MinScalar(graph.Div(graph.Scalar(g, t, max), norm), 1)
	scale = graph.Where(graph.IsFinite(norm), scale, graph.Scalar(g, t, math.NaN()))
	clipped := make([]*graph.Node, len(grads))
	for i, grad := range grads {
		wide := grad.DType()
		if wide.IsHalfPrecision() {
			wide = t
		}
		product := graph.Mul(graph.ConvertDType(grad, wide), graph.ConvertDType(scale, wide))
		clipped[i] = graph.ConvertDType(product, grad.DType())
	}
	return clipped
}
