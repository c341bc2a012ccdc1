package storemodel

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/ml/model"

	"github.com/shardbook/shardbook/lib/params"
)

// Validate returns an error if a variable of the model is no longer in the store, or has another shape or no value.
func (m *Model) Validate() error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	list := m.variables
	for _, p := range m.pieces {
		list = slices.Concat(list, p.fixed)
	}
	_, err := m.find(list)
	return err
}

// Init returns copies, on the host, of the current values of the parameters' variables: GoMLX's initial values after
// [New], and the written ones after [Model.Write].
func (m *Model) Init() ([]*tensors.Tensor, error) { return m.values(m.variables) }

// Write copies the values, in the order of [Model.Params], into the store's variables, for use with GoMLX. It changes
// all variables, or none if there is an error: values that do not fit the parameters or have been freed, or a store
// that [Model.Validate] rejects.
func (m *Model) Write(values []*tensors.Tensor) error {
	for i, value := range values {
		if value == nil || !value.Ok() {
			return fmt.Errorf("storemodel: value #%d is nil or was freed: give a tensor", i)
		}
	}
	if err := params.Check(m.Params(), values); err != nil {
		return fmt.Errorf("storemodel: %w", err)
	}
	copies, err := clones(values)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	variables, err := m.find(m.variables)
	if err != nil {
		return err
	}
	for i, v := range variables {
		// Reset frees the old value. The new one is set even if that fails.
		err = errors.Join(err, v.Reset(), v.SetValuePreservingOld(copies[i]))
	}
	return err
}

// values returns copies of the variables' values.
func (m *Model) values(of []variable) ([]*tensors.Tensor, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	variables, err := m.find(of)
	if err != nil {
		return nil, err
	}
	values := make([]*tensors.Tensor, len(of))
	for i, v := range variables {
		if values[i], err = v.Value(); err != nil {
			return nil, fmt.Errorf("storemodel: %w", err)
		}
	}
	return clones(values)
}

// find returns the store's variables, which must have values and their original shapes.
func (m *Model) find(list []variable) ([]*model.Variable, error) {
	byPath := map[string]*model.Variable{}
	for v := range m.store.IterVariables() {
		byPath[v.Path()] = v
	}
	found := make([]*model.Variable, len(list))
	for i, want := range list {
		switch v := byPath[want.path]; {
		case v == nil:
			return nil, fmt.Errorf("storemodel: the variable %q is no longer in the store: create a new model",
				want.path)
		case !v.Shape().Equal(want.shape):
			return nil, fmt.Errorf("storemodel: the variable %q has shape %s, but it had %s: create a new model",
				want.path, v.Shape(), want.shape)
		case !v.HasValue():
			return nil, fmt.Errorf("storemodel: the variable %q has no value: initialize the store", want.path)
		default:
			found[i] = v
		}
	}
	return found, nil
}

// clones copies tensors to the host.
func clones(values []*tensors.Tensor) ([]*tensors.Tensor, error) {
	copies := make([]*tensors.Tensor, len(values))
	err := try(func() (err error) {
		for i, value := range values {
			if copies[i], err = value.LocalClone(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("storemodel: copying a value: %w", err)
	}
	return copies, nil
}
