package storemodel

import (
	"fmt"
	"slices"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/ml/model"
)

// standIns are nodes that stand for variables in a graph.
//
// GoMLX keeps in each graph, by path, the node that every variable has there, whichever store it is of. What it offers
// for setting this node first makes a parameter of the graph that nobody would feed, or, of a store that is told so, a
// constant. So each node is set through a scalar variable of the same path in another store: what is left over in the
// graph is a scalar constant without use.
type standIns struct {
	graph     *graph.Graph
	store     *model.Store
	nodes     map[string]*graph.Node
	variables []*model.Variable
}

func newStandIns(g *graph.Graph) *standIns {
	return &standIns{graph: g, store: model.NewStore(), nodes: map[string]*graph.Node{}}
}

// add lets the node be the variable of the path. It panics if GoMLX does.
func (s *standIns) add(path string, node *graph.Node) {
	v, err := s.store.CreateVariable(path, tensors.FromScalar(false))
	if err != nil {
		panic(err)
	}
	s.store.WithVariableAsConst(true)
	v.NodeValue(s.graph)
	s.store.WithVariableAsConst(false) // which forbids changes
	v.SetNodeValue(node)
	s.nodes[path] = node
	s.variables = append(s.variables, v)
}

// check returns an error if a variable was changed, or the store has one with other dimensions than its node or that is
// used and has no node.
func (s *standIns) check(store *model.Store) error {
	for _, v := range s.variables {
		if v.NodeValue(s.graph) != s.nodes[v.Path()] {
			return changes(v.Path())
		}
	}
	for v := range store.IterVariables() {
		node, ok := s.nodes[v.Path()]
		switch {
		case ok && !slices.Equal(node.Shape().Dimensions, v.Shape().Dimensions):
			return fmt.Errorf("the model makes the variable %q of shape %s for this batch, its parameter has %s",
				v.Path(), v.Shape(), node.Shape())
		case !ok && v.ChangedInGraph(s.graph):
			return changes(v.Path())
		case !ok && v.InUseByGraph(s.graph):
			return fmt.Errorf("the model uses the variable %q for this batch, which it did not use when it was first built: "+
				"call New with a batch for which it uses all its variables", v.Path())
		}
	}
	return nil
}
