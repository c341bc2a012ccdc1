package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/params"
)

// Read returns a new host tensor for each entry of the tree, in the tree's order. The tree may be a part of the
// checkpoint's, in any order, for example without the optimizer's states. An entry that the checkpoint does not have,
// or has with another shape or element type, is an error that names it, before anything is read.
//
// It reads every file with one of the tensors once and in full, and returns nothing unless the checksums of all these
// files match. Cancelling ctx stops it between two tensors.
func (c *Checkpoint) Read(ctx context.Context, tree params.Tree) ([]*tensors.Tensor, error) {
	if err := tree.Validate(); err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	if err := c.compare(tree); err != nil {
		return nil, err
	}
	want, values := make([]Range, len(tree)), make([]*tensors.Tensor, len(tree))
	for i, spec := range tree {
		want[i] = Range{Spec: spec, Length: spec.Size()}
		values[i] = tensors.FromShape(spec.Shape.Clone())
	}
	if err := c.fill(ctx, want, values); err != nil {
		return nil, err
	}
	return values, nil
}

// fill reads the ranges into the values, new host tensors. They are valid only if it returns no error.
func (c *Checkpoint) fill(ctx context.Context, want []Range, values []*tensors.Tensor) error {
	wanted := map[string][]destination{}
	for i, r := range want {
		if first, end := r.span(); first < end {
			wanted[r.Spec.Name] = append(wanted[r.Spec.Name], destination{first, end, values[i]})
		}
	}
	files := map[string]*dataFile{}
	for _, f := range c.manifest.Files {
		files[f.Name] = &dataFile{file: f, arrays: map[string]target{}}
	}
	for _, t := range c.manifest.Tensors {
		for _, p := range t.Pieces {
			to := target{tensor: t, piece: p}
			first, end := p.span(t.Shape)
			for _, d := range wanted[t.Name] {
				if d.first < end && first < d.end {
					to.into = append(to.into, d)
					files[p.File].wanted = true
				}
			}
			files[p.File].arrays[p.Array] = to
		}
	}
	for _, f := range c.manifest.Files {
		if data := files[f.Name]; data.wanted {
			name := filepath.Join(c.Path, f.Name)
			if err := data.read(ctx, name); err != nil {
				return fmt.Errorf("checkpoint: %s: %w", name, err)
			}
		}
	}
	for i, r := range want {
		var odd error
		err := values[i].ConstBytes(func(data []byte) { odd = checkBools(r.Spec.Shape.DType, data) })
		if err = errors.Join(err, odd); err != nil {
			return fmt.Errorf("checkpoint: %s: %q: %w", c.Path, r.Spec.Name, err)
		}
	}
	return nil
}

// compare returns an error that names the tree's entries that the checkpoint lacks or has with another type or shape.
func (c *Checkpoint) compare(tree params.Tree) error {
	held := make(map[string]tensor, len(c.manifest.Tensors))
	for _, t := range c.manifest.Tensors {
		held[t.Name] = t
	}
	var differ []string
	said := map[string]bool{} // a tensor may be in the tree more than once, for several ranges
	for _, spec := range tree {
		t, ok := held[spec.Name]
		what := ""
		switch {
		case !ok:
			what = fmt.Sprintf("%s is not in the checkpoint", spec.Name)
		case t.dtype() != spec.Shape.DType:
			what = fmt.Sprintf("%s has element type %s in the checkpoint, %s in the model",
				spec.Name, t.dtype(), spec.Shape.DType)
		case !slices.Equal(t.Shape, spec.Shape.Dimensions):
			what = fmt.Sprintf("%s has shape %v in the checkpoint, %v in the model",
				spec.Name, t.Shape, spec.Shape.Dimensions)
		}
		if what != "" && !said[what] {
			differ, said[what] = append(differ, what), true
		}
	}
	if len(differ) == 0 {
		return nil
	}
	const most = 5
	if n := len(differ); n > most {
		differ = append(differ[:most], fmt.Sprintf("and %d more", n-most))
	}
	return fmt.Errorf("checkpoint: %s does not fit the model: %s; use the configuration that it was saved with",
		c.Path, strings.Join(differ, "; "))
}
