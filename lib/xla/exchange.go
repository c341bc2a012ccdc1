package xla

import (
	"errors"
	"fmt"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/go-xla/stablehlo"
	"github.com/gomlx/gomlx/core/graph"
)

// Exchange is a collective between ranks with programs and devices of their own, in the middle of a graph function. XLA
// has no such operation. NewSegments splits the function into programs at each exchange; the caller runs them, and
// moves the tensors in between.
type Exchange struct {
	// Kind is Permute, AllToAll or AllToAllV. In a permute every rank sends a tensor to the rank By places further
	// along the axis; in an all-to-all, part p of axis 0 to rank p; in an all-to-all-v, the rows that int32 counts
	// say, and the operands are those of a [Collective].
	Kind CollectiveKind
	Axis string
	By   int // for Permute; may be negative
	Rows int // for AllToAllV: of the result
}

// String returns the exchange as traces and errors name it, such as "ring+1" or "all-to-all along expert".
func (e Exchange) String() string {
	if e.Kind == Permute {
		return fmt.Sprintf("%s%+d", e.Axis, e.By)
	}
	return fmt.Sprintf("%v along %s", e.Kind, e.Axis)
}

// Of returns the tensor received. The gradient of the first operand is the exchange backwards of the output gradient.
// Of panics inside loops and branches, and on other backends. XLA refuses to compile a function with an exchange that
// is not split.
func (e Exchange) Of(operands ...*graph.Node) *graph.Node {
	g, result := operands[0].Graph(), operands[0].Shape().Clone()
	if _, ours := g.Backend().(*Backend); !ours {
		panic(errors.New("an exchange between ranks needs a backend of xla.Open"))
	}
	if !g.CurrentFunc().IsMain() {
		panic(fmt.Errorf("the exchange %v between ranks is inside of a loop or a branch: move it out", e))
	}
	if e.Kind == AllToAllV {
		result.Dimensions[0] = e.Rows
	}
	results := []shapes.Shape{result, shapes.Make(dtypes.Int32)} // two, as standIn needs
	return standIn(e.name(), operands, results)[0]
}

// transposed returns the gradients of the operands.
func (e Exchange) transposed(operands []*graph.Node, v *graph.Node) []*graph.Node {
	switch e.Kind {
	case Permute:
		e.By = -e.By
	case AllToAllV:
		x, counts, received := operands[0], operands[1], operands[2]
		e.Rows = x.Shape().Dimensions[0]
		return []*graph.Node{e.Of(v, received, counts), nil, nil}
	}
	return []*graph.Node{e.Of(v)}
}

var exchanges = numbered[Exchange]{prefix: "shardbook_exchange_"}

func (e Exchange) name() string { return exchanges.name(fmt.Sprintf("%#v", e), e) }

// write writes a custom call, which NewSegments recognizes.
func (e Exchange) write(inputs []value, f *stablehlo.Function) ([]value, error) {
	return customCall(e.name(), inputs, outputShapes(f))
}

// exchangeIn returns the exchange that a statement stands for.
func exchangeIn(s *stablehlo.Statement) (Exchange, bool) {
	name, _ := s.Attributes["call_target_name"].(string)
	return exchanges.named(name)
}
