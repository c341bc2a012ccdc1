package storemodel

import (
	"fmt"
	"slices"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/ml/model"
)

// standIns are nodes that are used as variables in a graph.
//
// GoMLX stores in each graph, by path, the node of every variable, from whichever store. Its way to set this node first
// creates a parameter of the graph, which nobody would feed, or a constant if the store is told so. So each node is set
// through a scalar variable with the same path in another store, which leaves only an unused scalar constant in the
// graph.
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

// add makes the node that of the variable with a path. It panics if GoMLX does.
func (s *standIns) add(path string, node *graph.Node) {
	v, err := s.store.CreateVariable(path, tensors.FromScalar(false))
	if err != nil {
		panic(err)
	}
	s.store.WithVariableAsConst(true)
	v.NodeValue(s.graph)
	s.store.WithVariableAsConst(false) // else it could not be set
	v.SetNodeValue(node)
	s.nodes[path] = node
	s.variables[path] = v
}

// now returns the current node of the variable with a path: another one, if the model changed it.
func (s *standIns) now(path string) *graph.Node { return s.variables[path].NodeValue(s.graph) }

// check returns an error if a constant was changed, or the store has a variable with other dimensions than its node or
// one that is used and has no node.
func (s *standIns) check(store *model.Store) error {
	for v := range store.IterVariables() {
		node, ok := s.nodes[v.Path()]
		switch {
		case ok && !slices.Equal(node.Shape().Dimensions, v.Shape().Dimensions):
			return fmt.Errorf("the model creates the variable %q with shape %s for this batch, but its parameter has "+
				"%s", v.Path(), v.Shape(), node.Shape())
		case ok && v.Path() != randomState && !node.DType().IsFloat() && s.now(v.Path()) != node:
			return changes(v)
		case !ok && v.InUseByGraph(s.graph):
			return fmt.Errorf("the model uses the variable %q for this batch, which it did not use when it was first "+
				"built: call New with a batch for which it uses all its variables", v.Path())
		}
	}
	return nil
}

// randomState is the path of the state of GoMLX's random number generator.
var randomState = model.JoinPath(model.RootScopePath, model.RNGStateVariableName)
