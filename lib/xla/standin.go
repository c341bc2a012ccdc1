package xla

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/go-xla/stablehlo"
	xlashapes "github.com/gomlx/go-xla/types/shapes"
	"github.com/gomlx/gomlx/core/graph"
)

// GoMLX has no nodes for placements inside of a graph, kernels, matmuls of 8-bit floats, exchanges between ranks, and
// most collectives. Instead a graph has calls of functions with reserved names, and all-reduces with reduction types
// beyond GoMLX's. Both have a number, under which the backend and the gradients find what they stand for.

// numbered assigns numbers to values; equal ones have the same number, so the list is short.
type numbered[T any] struct {
	prefix string // of names with numbers

	lock    sync.Mutex
	numbers map[string]int // by the values' text
	all     []T
}

// number returns a value's number. Values with the same text are equal.
func (n *numbered[T]) number(text string, value T) int {
	n.lock.Lock()
	defer n.lock.Unlock()
	number, known := n.numbers[text]
	if !known {
		if n.numbers == nil {
			n.numbers = map[string]int{}
		}
		number = len(n.all)
		n.numbers[text], n.all = number, append(n.all, value)
	}
	return number
}

// name returns the name of a function that stands for a value.
func (n *numbered[T]) name(text string, value T) string {
	return n.prefix + strconv.Itoa(n.number(text, value))
}

// at returns the value with a number.
func (n *numbered[T]) at(number int) (value T, ok bool) {
	n.lock.Lock()
	defer n.lock.Unlock()
	if number < 0 || number >= len(n.all) {
		return value, false
	}
	return n.all[number], true
}

// find returns the first value of which is is true, or the zero value.
func (n *numbered[T]) find(is func(T) bool) (none T) {
	n.lock.Lock()
	defer n.lock.Unlock()
	if i := slices.IndexFunc(n.all, is); i >= 0 {
		return n.all[i]
	}
	return none
}

// named returns the value that a name stands for. "_" and a suffix that makes the name unique may follow the number.
func (n *numbered[T]) named(name string) (value T, ok bool) {
	after, ours := strings.CutPrefix(name, n.prefix)
	digits, _, _ := strings.Cut(after, "_")
	number, err := strconv.Atoi(digits)
	if !ours || err != nil {
		return value, false
	}
	return n.at(number)
}

// standIn calls a function that stands for an operation which the backend writes in its place. There must be at least
// two results, or GoMLX would drop the call under Checkpoint.
func standIn(name string, operands []*graph.Node, results []shapes.Shape) []*graph.Node {
	g := operands[0].Graph()
	// Constants must not be shared with it (docs/upstream.md, "constants across closures").
	clearScalars(g)
	defer clearScalars(g)
	return graph.NewFunction(g, g.UniqueName(name), func(g *graph.Graph) []*graph.Node {
		for i, x := range operands {
			graph.Parameter(g, fmt.Sprint("operand", i), x.Shape())
		}
		zeros := make([]*graph.Node, len(results))
		for i, shape := range results {
			zeros[i] = graph.Zeros(g, shape)
		}
		return zeros
	}).Call(operands...)
}

// outputShapes returns the shapes of a function's results.
func outputShapes(f *stablehlo.Function) (all []xlashapes.Shape) {
	for _, v := range f.Outputs {
		all = append(all, v.Shape())
	}
	return all
}

// customCall writes a call of XLA's.
func customCall(target string, operands []value, results []xlashapes.Shape) (all []value, err error) {
	inputs := make([]*stablehlo.Value, len(operands))
	for i, x := range operands {
		inputs[i] = hloValue(x)
	}
	values, err := stablehlo.CustomCallV2(target, "", inputs, make([][]int, len(inputs)), results,
		make([][]int, len(results)))
	if err != nil {
		return nil, err
	}
	for _, v := range values {
		all = append(all, newValue(operands[0], v))
	}
	return all, nil
}
