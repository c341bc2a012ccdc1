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

// Shift is what ranks with programs of their own do together inside of a graph function: each gives a tensor to the
// rank By places on along an axis of ranks, and gets one of the same shape. XLA has no such operation; [NewCut] cuts the
// function into programs there, and whoever runs them moves the tensors between them.
type Shift struct {
	Axis string
	By   int // may be negative
}

// String returns the shift as reports have it.
func (s Shift) String() string { return fmt.Sprintf("%s%+d", s.Axis, s.By) }

// Of returns the x that another rank gives. Its gradient is that of x, shifted back. It must not be inside a While
// loop. A function that has it and is not cut is one that XLA refuses.
func (s Shift) Of(x *graph.Node) *graph.Node {
	g := x.Graph()
	if _, ours := g.Backend().(*Backend); !ours {
		panic(errors.New("what ranks exchange inside of a graph function is for the backend of xla.Open"))
	}
	if !g.CurrentFunc().IsMain() {
		panic(fmt.Errorf("the ranks' exchange %v is inside of a loop or a branch: take it out", s))
	}
	clearScalars(g)
	defer clearScalars(g)
	f := graph.NewFunction(g, g.UniqueName(fmt.Sprintf("%s%d", shifting, shifts.number(s))), func(g *graph.Graph) []*graph.Node {
		graph.Parameter(g, "x", x.Shape())
		// two results, or GoMLX would lose the call under Checkpoint
		return []*graph.Node{graph.Zeros(g, x.Shape()), graph.Zeros(g, shapes.Make(dtypes.Int32))}
	})
	return f.Call(x)[0]
}

// shifting begins the names of the functions that stand for shifts.
const shifting = "shardbook_shift_"

var shifts = numbered[Shift]{prefix: shifting}

// write writes a call that [NewCut] finds again.
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
