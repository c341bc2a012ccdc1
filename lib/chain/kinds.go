package chain

import (
	"fmt"
	"strings"
	"sync"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
)

// Kinds checks, once per model, that blocks of one [Block.Kind] are the same function. They share programs, so
// otherwise a different model would be trained.
type Kinds struct {
	mu   sync.Mutex
	done bool
}

// TextOf returns the text of a graph function's program for one device: xla.Backend.Text.
type TextOf = func(fn func(in []*graph.Node) []*graph.Node, in ...shapes.Shape) (string, error)

// Check builds the graphs of the blocks that share programs ([Model.SharedPrograms]) and of their gradients, for inputs
// of a shape, and returns an error if two blocks of one kind differ. It compiles nothing. Once it has succeeded, later
// calls return at once.
func (k *Kinds) Check(text TextOf, p Passes, inputs shapes.Shape) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.done {
		return nil
	}
	firsts, last := p.Model.SharedPrograms(), -1
	for i, first := range firsts {
		if first < i {
			last = i // later blocks share no programs
		}
	}
	x, texts, of := inputs, make([]string, last+1), make([]shapes.Shape, last+1) // texts, and shapes of their inputs
	for i := range last + 1 {
		own, y, err := p.text(text, i, x)
		if err != nil {
			return fmt.Errorf("chain: %w", err)
		}
		first := firsts[i]
		if texts[i], of[i] = own, x; !of[first].Equal(x) {
			if texts[first], _, err = p.text(text, first, x); err != nil {
				return fmt.Errorf("chain: %w", err)
			}
			of[first] = x
		}
		if at := difference(texts[first], own); at != "" {
			a, b := p.Model.Blocks[first], p.Model.Blocks[i]
			return fmt.Errorf("chain: blocks %q and %q are of the kind %q, but not one function (%s): give them two "+
				"kinds, or make what differs a parameter", a.Name, b.Name, b.Kind, at)
		}
		x = y
	}
	k.done = true
	return nil
}

// text returns the program of a block and its gradients, and the shape of the block's output.
func (p Passes) text(text TextOf, i int, x shapes.Shape) (program string, y shapes.Shape, err error) {
	var in []shapes.Shape
	for _, s := range p.Model.Blocks[i].Params.As(p.Precision.Compute) {
		in = append(in, s.Shape)
	}
	n := len(in)
	in = append(in, x)
	if p.Model.Noisy {
		in = append(in, shapes.Make(dtypes.Uint32), shapes.Make(dtypes.Uint32))
	}
	program, err = text(func(in []*graph.Node) []*graph.Node {
		o, toward := Operands{X: in[n]}, in[:n:n]
		if p.Model.Noisy {
			o.Key, o.Row = in[n+1], in[n+2]
		}
		if i > 0 { // inputs of the model have no gradient
			toward = append(toward, o.X)
		}
		out := p.apply(i, in[:n], o)
		y = out.Shape()
		if len(toward) == 0 {
			return []*graph.Node{out}
		}
		return append(graph.Gradient(graph.ReduceAllSum(out), toward...), out)
	}, in...)
	return program, y, err
}

// difference returns the first lines that differ, or "".
func difference(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return fmt.Sprintf("%.100s, and %.100s", strings.TrimSpace(x[i]), strings.TrimSpace(y[i]))
		}
	}
	return ""
}
