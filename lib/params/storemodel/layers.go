package storemodel

import (
	"errors"
	"fmt"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/ml/model"
)

// Layer is a piece of a GoMLX model.
type Layer struct {
	Name  string // the scope of its variables, and unique
	Build func(scope *model.Scope, x *graph.Node) *graph.Node
}

// Layers are a model, one layer after another.
type Layers []Layer

// Build is the model as a function for GoMLX, such as for a [model.Exec] of a store that [Model.Write] has written to.
func (l Layers) Build(scope *model.Scope, x *graph.Node) *graph.Node {
	for _, layer := range l {
		x = layer.Build(scope.In("%s", layer.Name), x)
	}
	return x
}

// NewChain is [New] for a model in pieces, so that it can be cut between them and train in pipelines: each layer is a
// block of a chain. The criterion returns the mean loss over a batch, a scalar, from the last layer's output and the
// targets. The parameters are those of New with the loss criterion(layers.Build(scope, inputs), targets).
//
// A layer takes what the one before it returns, of which the first axis is that of the batch's rows. Where layers but
// the last change variables or have regularizers, the sizes of the other axes must be the same in all batches, and
// what layers return floats: they give each other a number more for each row, by which that comes into the loss. (It is
// of the outputs' type: in half precision the regularizers' part of the loss is rounded to that.)
//
// Layers may have variables in common, by paths of their own in the store.
func NewChain(backend compute.Backend, store *model.Store, layers Layers,
	criterion func(y, targets *graph.Node) *graph.Node, inputs, targets shapes.Shape) (*Model, error) {
	if len(layers) == 0 || criterion == nil {
		return nil, errors.New("storemodel: there are no layers or no criterion: give both")
	}
	var pieces []*piece
	for i, l := range layers {
		if l.Name == "" || l.Build == nil {
			return nil, fmt.Errorf("storemodel: layer #%d, %q, has no name or no Build: give it both", i, l.Name)
		}
		p := &piece{name: l.Name, build: func(scope *model.Scope, x, targets *graph.Node) *graph.Node {
			y := l.Build(scope.In("%s", l.Name), x)
			if i == len(layers)-1 && y != nil {
				y = criterion(y, targets)
			}
			return y
		}}
		pieces = append(pieces, p)
	}
	return newModel(backend, store, pieces, inputs, targets)
}
