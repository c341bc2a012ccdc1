package chain

import (
	"fmt"
	"strings"
	"sync"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
)

// Kinds checks once that blocks of one [Block.Kind] are one function. They share their programs: a model in which they
// were not would be trained as another.
type Kinds struct {
	mu   sync.Mutex
	done bool
}

// TextOf writes a graph function's program for one device as a text: xla.Backend.Text.
type TextOf = func(fn func(in []*graph.Node) []*graph.Node, in ...shapes.Shape) (string, error)

// Check builds the graphs of the blocks that have twins (Model.SharedPrograms), and those of their gradients, for inputs of
// a shape, and returns an error that says which two differ. Nothing is compiled. Once it has found nothing it does
// nothing.
func (k *Kinds) Check(text TextOf, p Passes, inputs shapes.Shape) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.done {
		return nil
	}
	twins, last := p.Model.SharedPrograms(), -1
	for i, twin := range twins {
		if twin < i {
			last = i // behind which none has a twin
		}
	}
	x, texts, of := inputs, make([]string, last+1), make([]shapes.Shape, last+1) // what a text is of
	for i := range last + 1 {
		own, y, err := p.text(text, i, x)
		if err != nil {
			return fmt.Errorf("chain: %w", err)
		}
		twin := twins[i]
		if texts[i], of[i] = own, x; !of[twin].Equal(x) {
			if texts[twin], _, err = p.text(text, twin, x); err != nil {
				return fmt.Errorf("chain: %w", err)
			}
			of[twin] = x
		}
		if at := apart(texts[twin], own); at != "" {
			a, b := p.Model.Blocks[twin], p.Model.Blocks[i]
			return fmt.Errorf("chain: blocks %q and %q are of the kind %q, but not one function (%s): give them two kinds, "+
				"or make what differs a parameter", a.Name, b.Name, b.Kind, at)
		}
		x = y
	}
	k.done = true
	return nil
}

// text is the program of a block and of its gradients; y is the shape of its output.
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

// apart says where two programs begin to differ, or "".
func apart(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return fmt.Sprintf("%.100s, and %.100s", strings.TrimSpace(x[i]), strings.TrimSpace(y[i]))
		}
	}
	return ""
}
