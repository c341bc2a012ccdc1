// Package optim is the update rules of optimizers as pure graph functions: a parameter, its gradient and its state go
// in, the new parameter and state come out.
//
// Nothing is stored: a Optimizer lists the state that it keeps for a parameter, by name and shape, and the caller holds
// it. A rule computes in float32, whatever the type of the parameter and the gradient (in float64 for a float64
// parameter), and gives the new parameter in the type that it came in.
//
// All rules work on shards, too: a [Part] says which part of a parameter a rank has, and how to sum over the ranks. The
// result is that part of what the whole would become, up to float32 rounding: sums are made in another order, and XLA
// fuses a product and a sum to one rounding or not as it compiles a shape. (Adam8bit alone depends on how its blocks
// lie; see Adam8bitOptimizer.)
//
//	[SGD]        momentum, Nesterov        [Scheduled]          a rate that changes with the step
//	[AdamW]      and [Adam]                [Grouped]            other rules for some parameters
//	[Adam8bit]   AdamW in two bytes        [ClipByGlobalNorm]   gradients of bounded norm
//	[Adafactor]  rows and columns          [BytesPerParameter]  what the state costs
//	[Lion]       signs                     [Parse]              a rule by its name
//	[LAMB]       large batches
package optim

import (
	"fmt"
	"math"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
)

// Optimizer is the update rule of an optimizer.
type Optimizer interface {
	// Validate returns an error that names the first setting which is not valid, with its value and what to do.
	Validate() error

	// States lists what the rule keeps between steps for one part of a parameter (nil: for the whole), in the order of
	// Update; all of it starts at zero ([params.Zeros]). The names are below the parameter's: "head.w.m" for "head.w".
	// The part need not have its functions and nodes yet. If it does not fit the parameter, what is listed means
	// nothing; [StatesOfParts] returns an error then.
	States(param params.Spec, part Part) []State

	// Update returns the parameter and its states after one step. It builds a graph, and panics if the rule is not
	// valid or the shapes do not fit.
	Update(u Update) (param *graph.Node, states []*graph.Node)
}

// Update is what a rule is given for one parameter at one step.
//
// Param may have another type than Spec says: a caller that rounds half-precision parameters by itself gives a float32
// copy and gets one.
type Update struct {
	Spec        params.Spec   // the whole parameter: its name, and its dimensions when it is in one piece
	Part        Part          // which part of it this rank has; nil: the whole
	Param, Grad *graph.Node   // of the part's dimensions, and any floating-point types
	States      []*graph.Node // as Rule.States lists them
	Step        *graph.Node   // a scalar of any integer or floating-point type, 1 for the first step
	Rate        *graph.Node   // a scalar by which the rule's learning rate is multiplied; nil: 1
}

// State is one array that a rule keeps for a part of a parameter.
type State struct {
	params.Spec // its name, and its shape on this rank
	// Axis is the axis along which the ranks' states, put together as the parts of the parameter are, are that of the
	// whole (or, for the scales of [Adam8bit], those of all parts: see [Joins]); -1 means that every rank has the same.
	Axis int
}

// States lists the states of all parameters of a tree, parameter by parameter.
func States(r Optimizer, tree params.Tree) params.Tree {
	var all params.Tree
	for _, s := range tree {
		all = append(all, specs(r.States(s, nil))...)
	}
	return all
}

// StatesOfParts is [States] for one part of each parameter, in the order of the tree; a nil part is a whole. It returns
// an error if the parts differ from the tree in number or one does not fit its parameter.
func StatesOfParts(r Optimizer, tree params.Tree, parts []Part) ([]State, error) {
	if len(parts) != len(tree) {
		return nil, fmt.Errorf("optim: %d parts for the %d parameters of the tree: give one for each, nil for a whole",
			len(parts), len(tree))
	}
	var all []State
	for i, s := range tree {
		if err := wholeIfNil(parts[i]).check(s.Shape.Dimensions); err != nil {
			return nil, fmt.Errorf("optim: the part of %q: %w", s.Name, err)
		}
		all = append(all, r.States(s, parts[i])...)
	}
	return all, nil
}

// BytesPerParameter returns what the rule keeps for the whole tree, in bytes for each element of the parameters; 0 for
// an empty tree, and NaN for one that is not valid.
func BytesPerParameter(r Optimizer, tree params.Tree) float64 {
	if tree.Validate() != nil {
		return math.NaN()
	}
	return float64(States(r, tree).Bytes()) / max(1, float64(tree.Size()))
}

// Apply updates all parameters of the tree: [Rule.Update] for each, with its part of the states that [States] lists.
// Parameters and gradients are in the order of the tree and have its dimensions; their element types may differ from
// it. It builds a graph, and panics if the lists do not match the tree in number or any shape, or the rule is not
// valid.
func Apply(r Optimizer, tree params.Tree, values, grads, states []*graph.Node,
	step *graph.Node) (newValues, newStates []*graph.Node) {
	return ApplyToParts(r, tree, make([]Part, len(tree)), values, grads, states, step)
}

// ApplyToParts is [Apply] for one part of each parameter, as [StatesOfParts] is [States].
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
			panic(fmt.Errorf("optim: %d %s for a tree of %d parameters, which needs %d", list.got, list.what, len(tree),
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
