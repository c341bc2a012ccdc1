package params

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
)

// Named is one value per parameter, by name.
type Named[T any] map[string]T

// Nodes are parameters in a graph.
type Nodes = Named[*graph.Node]

// Zip names a list of values, one for each entry of the tree, in order. It is an error if the numbers differ or two
// entries have the same name.
func Zip[T any](t Tree, values []T) (Named[T], error) {
	if len(values) != len(t) {
		return nil, fmt.Errorf("params: %d values for the %d parameters of the tree %s: give one for each, in its "+
			"order", len(values), len(t), summary(t.Names()))
	}
	named := make(Named[T], len(t))
	for i, s := range t {
		if _, ok := named[s.Name]; ok {
			return nil, fmt.Errorf("params: two parameters of the tree are named %q: names must be unique", s.Name)
		}
		named[s.Name] = values[i]
	}
	return named, nil
}

// List returns the values of the tree's entries, in order. Values with other names are left out, so a part of a tree
// selects its values. An entry without a value is an error.
func (n Named[T]) List(t Tree) ([]T, error) {
	values := make([]T, len(t))
	for i, s := range t {
		v, ok := n[s.Name]
		if !ok {
			return nil, fmt.Errorf("params: no value for %q: there are values only for %s", s.Name, summary(n.sorted()))
		}
		values[i] = v
	}
	return values, nil
}

// Get returns the value with a name, and panics if there is none. It is for building graphs.
func (n Named[T]) Get(name string) T {
	v, ok := n[name]
	if !ok {
		panic(fmt.Errorf("params: no value for %q: there are values only for %s", name, summary(n.sorted())))
	}
	return v
}

func (n Named[T]) sorted() []string {
	names := make([]string, 0, len(n))
	for name := range n {
		names = append(names, name)
	}
	return inOrder(names)
}

// inOrder sorts names. It is not inlined: each package that uses Named compiles its methods, such as a notebook's cell.
//
//go:noinline
func inOrder(names []string) []string {
	slices.Sort(names)
	return names
}

// Check returns an error if the number of values is not that of the tree's entries, a value is nil or has another
// element type or shape than its entry, or two entries have the same name.
func Check[T shapes.HasShape](t Tree, values []T) error {
	if _, err := Zip(t, values); err != nil {
		return err
	}
	for i, s := range t {
		if v := reflect.ValueOf(values[i]); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
			return fmt.Errorf("params: the value of %q is nil: give one of shape %s", s.Name, s.Shape)
		}
		if got := values[i].Shape(); !got.Equal(s.Shape) {
			return fmt.Errorf("params: the value of %q has shape %s: give one of shape %s", s.Name, got, s.Shape)
		}
	}
	return nil
}

// Nodes names the graph nodes of the tree's parameters. It panics where [Check] returns an error. It is for building
// graphs.
func (t Tree) Nodes(nodes []*graph.Node) Nodes {
	if err := Check(t, nodes); err != nil {
		panic(err)
	}
	named, _ := Zip(t, nodes)
	return named
}

// Zeros returns a tensor of zeros for each entry of the tree, in order, or an error for an invalid tree.
func Zeros(t Tree) ([]*tensors.Tensor, error) {
	if err := t.Validate(); err != nil {
		return nil, err
	}
	zeros := make([]*tensors.Tensor, len(t))
	for i, s := range t {
		zeros[i] = tensors.FromShape(s.Shape)
	}
	return zeros, nil
}
