package storemodel

import (
	"errors"
	"fmt"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/ml/model"
)

// Layer is a layer, or a part, of a GoMLX model.
type Layer struct {
	Name  string // the scope of its variables; unique
	Build func(scope *model.Scope, x *graph.Node) *graph.Node
}

// Layers is a model as a sequence of layers.
type Layers []Layer

// Build builds the model for GoMLX, such as for a [model.Exec] with a store that [Model.Write] has written to.
func (l Layers) Build(scope *model.Scope, x *graph.Node) *graph.Node {
	for _, layer := range l {
		x = layer.Build(scope.In("%s", layer.Name), x)
	}
	return x
}

// NewChain is [New] for a model as a sequence of layers, so that pipelines can cut it: each layer is a block of a
// chain. The criterion returns the mean loss over a batch, a scalar, from the last layer's output and the targets. The
// parameters are those of New with the loss criterion(layers.Build(scope, inputs), targets).
//
// A layer's input is the previous layer's output, whose first axis is the batch. If a layer before the last changes
// variables or has regularizers, layers must return floats, and the other axes must have the same sizes in all batches:
// the layers then pass on one more number per example, which adds these to the loss. (It has the outputs' type, so in
// half precision the regularizers' part of the loss is rounded to it.)
//
// Layers may share variables, by absolute paths in the store.
func NewChain(backend compute.Backend, store *model.Store, layers Layers,
	criterion func(y, targets *graph.Node) *graph.Node, inputs, targets shapes.Shape) (*Model, error) {
	if len(layers) == 0 || criterion == nil {
		return nil, errors.New("storemodel: no layers or no criterion: give both")
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
