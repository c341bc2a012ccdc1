package xla

import (
	"errors"
	"fmt"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/go-xla/stablehlo"
	"github.com/gomlx/gomlx/core/graph"
)

// Shift is an exchange between ranks with programs and devices of their own, in the middle of a graph function: every
// rank sends a tensor to the rank By places further along an axis, and receives one of the same shape. XLA has no such
// operation. NewSegments splits the function into programs at each shift; the caller runs them, and sends the tensors
// in between.
type Shift struct {
	Axis string
	By   int // may be negative
}

// String returns the shift as traces and errors name it, such as "ring+1".
func (s Shift) String() string { return fmt.Sprintf("%s%+d", s.Axis, s.By) }

// Of returns the tensor received for x, which is sent. The gradient of x is the output gradient shifted back. Of panics
// inside loops and branches, and on other backends. XLA refuses to compile a function with a shift that is not split.
func (s Shift) Of(x *graph.Node) *graph.Node {
	g := x.Graph()
	if _, ours := g.Backend().(*Backend); !ours {
		panic(errors.New("a shift between ranks needs a backend of xla.Open"))
	}
	if !g.CurrentFunc().IsMain() {
		panic(fmt.Errorf("the shift %v between ranks is inside of a loop or a branch: move it out", s))
	}
	clearScalars(g)
	defer clearScalars(g)
	name := g.UniqueName(fmt.Sprintf("%s%d", shifting, shifts.number(s)))
	f := graph.NewFunction(g, name, func(g *graph.Graph) []*graph.Node {
		graph.Parameter(g, "x", x.Shape())
		// Two results, or GoMLX would drop the call under Checkpoint.
		return []*graph.Node{graph.Zeros(g, x.Shape()), graph.Zeros(g, shapes.Make(dtypes.Int32))}
	})
	return f.Call(x)[0]
}

// shifting is the prefix of the names of the functions that stand for shifts.
const shifting = "shardbook_shift_"

var shifts = numbered[Shift]{prefix: shifting}

// write emits a custom call, which NewSegments recognizes.
func (s Shift) write(x compute.Value, f *stablehlo.Function) ([]compute.Value, error) {
	values, err := stablehlo.CustomCallV2(fmt.Sprint(shifting, shifts.number(s)), "", []*stablehlo.Value{hloValue(x)},
		[][]int{nil}, shapesOf(f.Outputs), make([][]int, len(f.Outputs)))
	if err != nil {
		return nil, err
	}
	return []compute.Value{newValue(x, values[0]), newValue(x, values[1])}, nil
}

// shiftIn returns the shift that a statement stands for.
func shiftIn(s *stablehlo.Statement) (Shift, bool) {
	name, _ := s.Attributes["call_target_name"].(string)
	return shifts.of(name)
}
