package params_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/params"
)

var tree = params.Tree{
	params.New("tok", dtypes.Float32, 5, 2),
	params.New("h1.w", dtypes.BFloat16, 2, 3),
	params.New("h1.ln.g", dtypes.Float32, 3),
	params.New("h10.w", dtypes.Int8, 7),
	params.New("scale", dtypes.Float64),
}

func TestSizes(t *testing.T) {
	// Bytes: 5·2·4, 2·3·2, 3·4, 7·1 and, for the scalar, 8.
	wantSize, wantBytes := []int{10, 6, 3, 7, 1}, []int64{40, 12, 12, 7, 8}
	for i, s := range tree {
		if s.Size() != wantSize[i] || s.Bytes() != wantBytes[i] {
			t.Errorf("%s: %d elements in %d bytes, want %d in %d", s, s.Size(), s.Bytes(), wantSize[i], wantBytes[i])
		}
	}
	if tree.Size() != 27 || tree.Bytes() != 79 {
		t.Errorf("%d elements in %d bytes, want 27 in 79", tree.Size(), tree.Bytes())
	}
}

func TestIndex(t *testing.T) {
	for i, name := range tree.Names() {
		if got := tree.Index(name); got != i {
			t.Errorf("Index(%q) = %d, want %d", name, got, i)
		}
	}
	if got := tree.Index("h1"); got != -1 {
		t.Errorf(`Index("h1") = %d, want -1`, got)
	}
}

func TestUnder(t *testing.T) {
	for _, c := range []struct {
		paths []string
		want  []string
		err   string
	}{
		{nil, nil, ""},
		{[]string{"h1"}, []string{"h1.w", "h1.ln.g"}, ""},
		{[]string{"h1.ln"}, []string{"h1.ln.g"}, ""},
		{[]string{"h1.ln.g"}, []string{"h1.ln.g"}, ""},
		{[]string{"h10", "tok"}, []string{"tok", "h10.w"}, ""},
		{[]string{"h1", "h1.w"}, []string{"h1.w", "h1.ln.g"}, ""},
		{[]string{"tok", "h2"}, nil, `no parameter is at or below "h2"`},
		{[]string{"h"}, nil, `no parameter is at or below "h"`},
		{[]string{""}, nil, `no parameter is at or below ""`},
	} {
		got, err := tree.Under(c.paths...)
		if !slices.Equal(got.Names(), c.want) || !matches(err, c.err) {
			t.Errorf("Under(%q) = %q, %v; want %q, %q", c.paths, got.Names(), err, c.want, c.err)
		}
	}
}

func TestValidate(t *testing.T) {
	w := params.New("w", dtypes.Float32, 2)
	for _, c := range []struct {
		tree params.Tree
		want string
	}{
		{nil, ""},
		{tree, ""},
		{params.Tree{w, {Shape: w.Shape}}, "entry #1 has no name"},
		{params.Tree{w, tree[0], w}, `entries #0 and #2 are both named "w"`},
		{params.Tree{{Name: "w"}}, `"w" has element type`},
		{params.Tree{params.New("w", dtypes.DType(999), 2)}, `"w" has element type DType(999)`},
		{params.Tree{params.New("w", dtypes.DType(-1), 2)}, `"w" has element type DType(-1)`},
		{params.Tree{params.New("w", dtypes.Float32, 2, 0)}, `axis 1 of "w" has dimension 0`},
		{params.Tree{params.New("w", dtypes.Float32, -1)}, `axis 0 of "w" has dimension -1`},
	} {
		if err := c.tree.Validate(); !matches(err, c.want) {
			t.Errorf("%v: error %v, want %q", c.tree, err, c.want)
		}
		if _, err := params.Zeros(c.tree); !matches(err, c.want) {
			t.Errorf("Zeros(%v): error %v, want %q", c.tree, err, c.want)
		}
	}
}

// From ordered to named and back is the identity, and a part of the tree selects its values.
func TestZipAndList(t *testing.T) {
	values := []int{10, 11, 12, 13, 14}
	named := must.Get(params.Zip(tree, values))(t)
	if back, err := named.List(tree); err != nil || !slices.Equal(back, values) {
		t.Errorf("List(Zip(%v)) = %v, %v", values, back, err)
	}
	if got := named.Get("h1.ln.g"); got != 12 {
		t.Errorf("Get = %d, want 12", got)
	}
	part := params.Tree{tree[3], tree[1]}
	if got, err := named.List(part); err != nil || !slices.Equal(got, []int{13, 11}) {
		t.Errorf("List of a part = %v, %v; want [13 11]", got, err)
	}
	named["h1.w"] = 99
	if got, err := named.List(tree); err != nil || !slices.Equal(got, []int{10, 99, 12, 13, 14}) {
		t.Errorf("List after a replacement = %v, %v", got, err)
	}
	delete(named, "h1.w")
	if _, err := named.List(tree); !matches(err, `no value for "h1.w"`) {
		t.Errorf("List with a value missing: error %v", err)
	}
	if _, err := params.Zip(tree, values[1:]); !matches(err, "4 values for the 5 parameters") {
		t.Errorf("Zip of too few: error %v", err)
	}
	if _, err := params.Zip(params.Tree{tree[0], tree[1], tree[0]}, values[:3]); !matches(err,
		`two parameters of the tree are named "tok"`) {
		t.Errorf("Zip of two with one name: error %v", err)
	}
	defer func() {
		if err, _ := recover().(error); !matches(err, `no value for "nothing"`) {
			t.Errorf("Get of nothing panics with %v", err)
		}
	}()
	named.Get("nothing")
}

func TestCheckAndZeros(t *testing.T) {
	zeros := must.Get(params.Zeros(tree))(t)
	if err := params.Check(tree, zeros); err != nil {
		t.Error(err)
	}
	if got := tensors.MustCopyFlatData[float32](zeros[0]); !slices.Equal(got, make([]float32, 10)) {
		t.Errorf("Zeros = %v", got)
	}
	if err := params.Check(tree, zeros[:4]); !matches(err, "4 values for the 5 parameters") {
		t.Errorf("Check of too few: error %v", err)
	}
	for _, wrong := range []*tensors.Tensor{
		tensors.FromShape(params.New("", dtypes.Float32, 2, 3).Shape),  // another type
		tensors.FromShape(params.New("", dtypes.BFloat16, 3, 2).Shape), // other dimensions
		tensors.FromShape(params.New("", dtypes.BFloat16, 6).Shape),
	} {
		values := slices.Clone(zeros)
		values[1] = wrong
		if err := params.Check(tree, values); !matches(err, `the value of "h1.w" has shape`) {
			t.Errorf("Check with %s: error %v", wrong.Shape(), err)
		}
	}
	const isNil = `the value of "tok" is nil: give one of shape (Float32)[5, 2]`
	for what, err := range map[string]error{
		"tensor":    params.Check(tree[:1], []*tensors.Tensor{nil}),
		"node":      params.Check(tree[:1], []*graph.Node{nil}),
		"interface": params.Check(tree[:1], []shapes.HasShape{nil}),
	} {
		if !matches(err, isNil) {
			t.Errorf("Check of a nil %s: error %v", what, err)
		}
	}
}

// matches reports whether an error contains a text, or there is none if the text is empty.
func matches(err error, want string) bool {
	if err == nil || want == "" {
		return err == nil && want == ""
	}
	return strings.Contains(err.Error(), want)
}
