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
	for i, v := range vs[:len(vs)-1] {
		if v != nil { // the loss depends on this result
			gradients[i] = transposed(c, v)
		}
	}
	return gradients
}

func transposed(c xla.Collective, v *graph.Node) *graph.Node {
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
	}
	panic(fmt.Errorf("no gradient for %v", c.Kind))
}
