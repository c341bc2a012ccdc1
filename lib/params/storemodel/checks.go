package storemodel

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/ml/model"
)

// checkLoss returns an error if a loss is no scalar that has a gradient.
func checkLoss(loss *graph.Node) error {
	switch {
	case loss == nil:
		return errors.New("the loss function returned nil, want the mean loss")
	case !loss.IsScalar() || !loss.DType().IsFloat():
		return fmt.Errorf("the loss has shape %s, want a float scalar: return the mean (graph.ReduceAllMean)", loss.Shape())
	}
	return nil
}

// checkTrainer returns an error if a model left something in its graph for GoMLX's trainer (train.AddLoss,
// train.AddPerStepUpdateGraphFn), which is not there to take it.
func checkTrainer(g *graph.Graph, store *model.Store) error {
	for p := range store.IterGraphParams(g) {
		if strings.HasPrefix(p.Key, "trainer_") {
			return fmt.Errorf("the model adds %q to the loss or the steps of GoMLX's trainer, which does not run here: "+
				"switch the layer's regularizer off (l1_regularization, l2_regularization), and add the term to the loss itself", p.Key)
		}
	}
	return nil
}

// changes is the error for a model that changes a variable while it trains.
func changes(path string) error {
	return fmt.Errorf("the model changes the variable %q while it trains, and a loss cannot hand the new value on: "+
		"freeze it (batch normalization: FrozenAverages(true)) or leave the layer out (dropout: a rate of 0)", path)
}

// checkAsked returns an error if a variable of the model was looked for before there was one.
func (m *Model) checkAsked(store *model.Store, asked lookups) error {
	made := map[string]bool{}
	for v := range store.IterVariables() {
		made[v.Path()] = true
	}
	for _, v := range m.all {
		if asked[v.path] && !made[v.path] {
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
