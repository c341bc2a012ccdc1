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
//	[Adam8bit]   AdamW in two bytes        [ClipByGlobalNorm]   gradient clipping
//	[Adafactor]  row and column means      [BytesPerParameter]  the memory of the states
//	[Lion]       signs                     [Parse]              an optimizer by its name
//	[LAMB]       large batches
package optim

import (
	"fmt"
	"math"

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
