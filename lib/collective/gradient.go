package collective

import (
	"fmt"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/xla"
)

// Notes of an all-reduce whose backward pass is not an all-reduce.
const (
	identity  = "the backward pass is the identity" // see AllReduce
	conjugate = "the backward pass is F"            // see G
)

// GoMLX has no gradient for its all-reduce node, which carries all operations of this package.
func init() { graph.VJPRegistration[graph.NodeTypeAllReduce] = transpose }

// transpose returns the gradients of an operation's operands, given those of its results. The last operand and result
// belong to xla.Collective.
func transpose(node *graph.Node, vs []*graph.Node, _ shapes.Shape) []*graph.Node {
	c, ours := xla.CollectiveOf(node)
	if !ours {
		panic(fmt.Errorf("GoMLX's Distributed().AllReduce has no gradient: use collective.AllReduce"))
	}
	gradients := make([]*graph.Node, len(node.Inputs()))
	of := len(vs) - 1
	if c.Kind == xla.AllToAllV {
		of = 1 // counts have no gradient
	}
	for i, v := range vs[:of] {
		if v != nil { // the loss depends on this result
			gradients[i] = transposed(c, v, node.Inputs())
		}
	}
	return gradients
}

func transposed(c xla.Collective, v *graph.Node, operands []*graph.Node) *graph.Node {
	switch c.Kind {
	case xla.AllReduce:
		switch c.Note {
		case identity:
			return v
		case conjugate:
			return F(v, c.Along...)
		}
		return AllReduce(v, Sum, c.Along...)
	case xla.AllGather:
		return ReduceScatter(v, Sum, c.Axis, c.Along...)
	case xla.ReduceScatter:
		return AllGather(v, c.Axis, c.Along...)
	case xla.AllToAll:
		return AllToAll(v, c.Concat, c.Axis, c.Along...)
	case xla.Permute:
		return Permute(v, back(c.To, len(c.To)), c.Along...)
	case xla.AllToAllV:
		x, counts, received := operands[0], operands[1], operands[2]
		return xla.Collective{Kind: c.Kind, Rows: x.Shape().Dimensions[0], Along: c.Along}.Apply(v, received, counts)[0]
	}
	panic(fmt.Errorf("no gradient for %v", c.Kind))
}
