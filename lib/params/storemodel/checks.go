package storemodel

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/ml/model"
	"github.com/gomlx/gomlx/ml/train"
)

// penaltyPath is where GoMLX's regularizers add to a graph's loss.
var penaltyPath = model.JoinPath(train.TrainerAbsoluteScope, train.TrainerRegularizationLossGraphParamKey)

// penalty returns what regularizers have added, or nil.
func penalty(g *graph.Graph) *graph.Node { return train.GetRegularizationLoss(g) }

// checkOutput returns an error if a layer returns nil, or the loss is not a float scalar.
func (m *Model) checkOutput(p *piece, y *graph.Node) error {
	switch {
	case y == nil && !m.last(p):
		return errors.New("the layer returned nil: return its output")
	case y == nil:
		return errors.New("the loss function returned nil: return the mean loss")
	case m.last(p) && (!y.IsScalar() || !y.DType().IsFloat()):
		return fmt.Errorf("the loss has shape %s, not that of a float scalar: return the mean (graph.ReduceAllMean)",
			y.Shape())
	}
	return nil
}

// checkTrainer returns an error if the model relies on GoMLX's trainer by train.AddMainLoss or
// train.AddPerStepUpdateGraphFn.
func checkTrainer(g *graph.Graph, store *model.Store) error {
	for p := range store.IterGraphParams(g) {
		if strings.HasPrefix(p.Key, "trainer_") && p.Key != train.TrainerRegularizationLossGraphParamKey {
			return fmt.Errorf("the model adds %q to the loss or the steps of GoMLX's trainer, which does not run "+
				"here: return the complete loss, and use an L2 regularizer instead of L1 (l1_regularization), which "+
				"sets small weights to 0 after each step", p.Key)
		}
	}
	return nil
}

// changes is the error for a model that changes a variable which only the optimizer may change, or nobody.
func changes(v *model.Variable) error {
	if v.Trainable {
		return fmt.Errorf("the model changes the variable %q in training, which the optimizer changes: "+
			"call its SetTrainable(false), or leave it to the optimizer", v.Path())
	}
	return fmt.Errorf("the model changes the variable %q of type %s in training: make it a float, whose changes "+
		"are averaged over the devices", v.Path(), v.DType())
}

// checkCreated returns an error if the piece looked up a variable that it did not create.
func (p *piece) checkCreated(store *model.Store, missing lookups) error {
	created := map[string]bool{}
	for v := range store.IterVariables() {
		created[v.Path()] = true
	}
	for _, v := range p.store {
		if missing[v.path] && !created[v.path] {
			return fmt.Errorf("the model uses the variable %q, but did not create it", v.path)
		}
	}
	return nil
}

// lookups are the paths of variables that were looked up in a store and not found. It is a [model.Loader] without
// values.
type lookups map[string]bool

// LoadVariable implements [model.Loader].
func (l lookups) LoadVariable(_ *model.Store, path string) (*tensors.Tensor, bool) {
	l[path] = true
	return nil, false
}

// DeleteVariable implements [model.Loader].
func (l lookups) DeleteVariable(*model.Store, string) error { return nil }
