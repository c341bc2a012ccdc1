package xla

import (
	"errors"
	"fmt"

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
	results := []shapes.Shape{x.Shape(), shapes.Make(dtypes.Int32)} // two, as standIn needs
	return standIn(shifts.name(s.String(), s), []*graph.Node{x}, results)[0]
}

var shifts = numbered[Shift]{prefix: "shardbook_shift_"}

// write writes a custom call, which NewSegments recognizes.
func (s Shift) write(inputs []value, f *stablehlo.Function) ([]value, error) {
	return customCall(shifts.name(s.String(), s), inputs, outputShapes(f))
}

// shiftIn returns the shift that a statement stands for.
func shiftIn(s *stablehlo.Statement) (Shift, bool) {
	name, _ := s.Attributes["call_target_name"].(string)
	return shifts.named(name)
}
