// Package params describes the parameters of a model: an ordered list of named, shaped entries without values.
//
// A [Tree] says which parameters there are and in which order. The values, such as graph nodes or tensors, are plain
// slices in that order. Code that shards, cuts or replaces parts of a model works on these slices, and finds parts by
// name:
//
//	w := tree.Nodes(nodes)          // ordered → by name
//	w["head.w"] = replacement       // any part can be replaced
//	nodes, err = w.List(tree)       // by name → ordered
//	stage, err := tree.Under("h0")  // the entries of one block
package params

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
)

// Spec describes one parameter.
type Spec struct {
	// Name is a path of parts separated by dots, unique in the tree: "h0.qkv.w".
	Name string
	// Shape holds the element type and the dimensions. A scalar has no dimensions.
	Shape shapes.Shape
}

// New returns the spec of an array with an element type and dimensions. [Tree.Validate] checks it.
func New(name string, dtype dtypes.DType, dimensions ...int) Spec {
	return Spec{Name: name, Shape: shapes.Shape{DType: dtype, Dimensions: dimensions}}
}

// Size returns the number of elements.
func (s Spec) Size() int { return s.Shape.Size() }

// Bytes returns the memory of one copy, in bytes.
func (s Spec) Bytes() int64 { return s.Shape.ByteSize() }

// String returns the name and the shape, as in "h0.qkv.w (Float32)[256, 768]".
func (s Spec) String() string { return s.Name + " " + s.Shape.String() }

// Tree is an ordered list of parameters. The nil Tree is empty.
type Tree []Spec

// Validate returns an error that names the first entry without a name, with the name of another, without a valid
// element type, or with a dimension below 1.
func (t Tree) Validate() error {
	seen := make(map[string]int, len(t))
	for i, s := range t {
		if s.Name == "" {
			return fmt.Errorf("params: entry #%d has no name: give every parameter one", i)
		}
		if j, ok := seen[s.Name]; ok {
			return fmt.Errorf("params: entries #%d and #%d are both named %q: names must be unique", j, i, s.Name)
		}
		seen[s.Name] = i
		// IsSupported panics for numbers that are not types.
		if d := s.Shape.DType; d < 0 || d >= dtypes.MaxDType || !d.IsSupported() {
			return fmt.Errorf("params: %q has element type %s: choose one that tensors support", s.Name, s.Shape.DType)
		}
		for axis, d := range s.Shape.Dimensions {
			if d < 1 {
				return fmt.Errorf("params: axis %d of %q has dimension %d: choose at least 1", axis, s.Name, d)
			}
		}
	}
	return nil
}

// Names returns the names in order.
func (t Tree) Names() []string {
	names := make([]string, len(t))
	for i, s := range t {
		names[i] = s.Name
	}
	return names
}

// Index returns the position of the parameter with a name, or -1.
func (t Tree) Index(name string) int {
	return slices.IndexFunc(t, func(s Spec) bool { return s.Name == name })
}

// Size returns the number of elements of all parameters together.
func (t Tree) Size() int {
	n := 0
	for _, s := range t {
		n += s.Size()
	}
	return n
}

// Bytes returns the memory of one copy of all parameters, in bytes.
func (t Tree) Bytes() int64 {
	var n int64
	for _, s := range t {
		n += s.Bytes()
	}
	return n
}

// Under returns the entries at or below any of the paths, in the tree's order: Under("h1") has "h1.up.w" but not
// "h10.up.w". A path without entries is an error.
func (t Tree) Under(paths ...string) (Tree, error) {
	found := make([]bool, len(paths))
	var sub Tree
	for _, s := range t {
		in := false
		for i, p := range paths {
			if s.Name == p || strings.HasPrefix(s.Name, p+".") {
				in, found[i] = true, true
			}
		}
		if in {
			sub = append(sub, s)
		}
	}
	if i := slices.Index(found, false); i >= 0 {
		return nil, fmt.Errorf("params: no parameter is at or below %q: the tree has %s", paths[i], summary(t.Names()))
	}
	return sub, nil
}

// As returns the tree with its floating-point entries in another floating-point type, for example for a half-precision
// copy of the parameters.
func (t Tree) As(dtype dtypes.DType) Tree {
	as := slices.Clone(t)
	for i := range as {
		if as[i].Shape.DType.IsFloat() {
			as[i].Shape.DType = dtype
		}
	}
	return as
}

// summary lists names, leaving out the middle of a long list.
func summary(names []string) string {
	if len(names) > 8 {
		names = slices.Concat(names[:4], []string{"…"}, names[len(names)-3:])
	}
	return fmt.Sprintf("%q", names)
}
