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
	variables map[string]*model.Variable
}

func newStandIns(g *graph.Graph) *standIns {
	return &standIns{graph: g, store: model.NewStore(), nodes: map[string]*graph.Node{},
		variables: map[string]*model.Variable{}}
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
	s.variables[path] = v
}

// now is the node that is the variable of the path at the end: another one, if it was changed.
func (s *standIns) now(path string) *graph.Node { return s.variables[path].NodeValue(s.graph) }

// check returns an error if a constant was changed, or the store has a variable with other dimensions than its node or
// one that is used and has no node.
func (s *standIns) check(store *model.Store) error {
	for v := range store.IterVariables() {
		node, ok := s.nodes[v.Path()]
		switch {
		case ok && !slices.Equal(node.Shape().Dimensions, v.Shape().Dimensions):
			return fmt.Errorf("the model makes the variable %q of shape %s for this batch, its parameter has %s",
				v.Path(), v.Shape(), node.Shape())
		case ok && v.Path() != randomState && !node.DType().IsFloat() && s.now(v.Path()) != node:
			return changes(v)
		case !ok && v.InUseByGraph(s.graph):
			return fmt.Errorf("the model uses the variable %q for this batch, which it did not use when it was first built: "+
				"call New with a batch for which it uses all its variables", v.Path())
		}
	}
	return nil
}

// randomState is the path of the variable that GoMLX's random numbers are made of.
var randomState = model.JoinPath(model.RootScopePath, model.RNGStateVariableName)
