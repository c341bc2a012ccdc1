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

// penaltyPath is where GoMLX's regularizers add to the loss of a graph.
var penaltyPath = model.JoinPath(train.TrainerAbsoluteScope, train.TrainerRegularizationLossGraphParamKey)

// penalty is what they have added, or nil.
func penalty(g *graph.Graph) *graph.Node { return train.GetRegularizationLoss(g) }

// checkOutput returns an error if a piece returns nothing, or a loss that is no scalar that has a gradient.
func (m *Model) checkOutput(p *piece, y *graph.Node) error {
	switch {
	case y == nil && !m.last(p):
		return errors.New("the layer returned nil, want its output")
	case y == nil:
		return errors.New("the loss function returned nil, want the mean loss")
	case m.last(p) && (!y.IsScalar() || !y.DType().IsFloat()):
		return fmt.Errorf("the loss has shape %s, want a float scalar: return the mean (graph.ReduceAllMean)",
			y.Shape())
	}
	return nil
}

// checkTrainer returns an error if a model left something in its graph for GoMLX's trainer, which is not there to take
// it: train.AddMainLoss, train.AddPerStepUpdateGraphFn.
func checkTrainer(g *graph.Graph, store *model.Store) error {
	for p := range store.IterGraphParams(g) {
		if strings.HasPrefix(p.Key, "trainer_") && p.Key != train.TrainerRegularizationLossGraphParamKey {
			return fmt.Errorf("the model adds %q to the loss or the steps of GoMLX's trainer, which does not run here: "+
				"return the whole loss, and take an L2 regularizer in the place of L1 (l1_regularization), which sets "+
				"small weights to 0 after each step", p.Key)
		}
	}
	return nil
}

// changes is the error for a model that changes a variable which must stay as it is.
func changes(v *model.Variable) error {
	if v.Trainable {
		return fmt.Errorf("the model changes the variable %q while it trains, which the optimizer changes: "+
			"call its SetTrainable(false), or leave it to the optimizer", v.Path())
	}
	return fmt.Errorf("the model changes the variable %q of type %s while it trains: make it a float, whose changes "+
		"are averaged over the devices", v.Path(), v.DType())
}

// checkMade returns an error if a variable of the piece was looked for before there was one.
func (p *piece) checkMade(store *model.Store, missing lookups) error {
	made := map[string]bool{}
	for v := range store.IterVariables() {
		made[v.Path()] = true
	}
	for _, v := range p.store {
		if missing[v.path] && !made[v.path] {
			return fmt.Errorf("the model takes the variable %q, but did not make it", v.path)
		}
	}
	return nil
}

// lookups are the paths of variables that a store did not have when it was asked for them. It is a [model.Loader] that
// has nothing to load.
type lookups map[string]bool

// LoadVariable implements [model.Loader].
func (l lookups) LoadVariable(_ *model.Store, path string) (*tensors.Tensor, bool) {
	l[path] = true
	return nil, false
}

// DeleteVariable implements [model.Loader].
func (l lookups) DeleteVariable(*model.Store, string) error { return nil }
