package checkpoint

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/params"
)

// Read returns a new host tensor for each entry of the tree, in the tree's order. The tree may be a part of the
// checkpoint's, in any order: the parameters without the optimizer's states, say. An entry that the checkpoint does not
// have, or has in another shape or element type, is an error that names it, before anything is read.
//
// Every file that holds one of the tensors is read once and whole, and no tensor is handed out unless all of these files
// have the checksums that they were written with. Cancelling ctx stops the reading between two tensors.
func (c *Checkpoint) Read(ctx context.Context, tree params.Tree) ([]*tensors.Tensor, error) {
	if err := tree.Validate(); err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	if err := c.compare(tree); err != nil {
		return nil, err
	}
	wanted := make(map[string]int, len(tree))
	values := make([]*tensors.Tensor, len(tree))
	for i, spec := range tree {
		wanted[spec.Name] = i
		values[i] = tensors.FromShape(spec.Shape.Clone())
	}
	files := map[string]*dataFile{}
	for _, f := range c.manifest.Files {
		files[f.Name] = &dataFile{file: f, arrays: map[string]target{}}
	}
	for _, t := range c.manifest.Tensors {
		for _, p := range t.Pieces {
			to := target{tensor: t, piece: p}
			if i, ok := wanted[t.Name]; ok {
				to.value = values[i]
				files[p.File].wanted = true
			}
			files[p.File].arrays[p.Array] = to
		}
	}
	for _, f := range c.manifest.Files {
		if data := files[f.Name]; data.wanted {
			name := filepath.Join(c.Path, f.Name)
			if err := data.read(ctx, name); err != nil {
				return nil, fmt.Errorf("checkpoint: %s: %w", name, err)
			}
		}
	}
	for i, spec := range tree {
		if err := checkBools(values[i]); err != nil {
			return nil, fmt.Errorf("checkpoint: %s: %q: %w", c.Path, spec.Name, err)
		}
	}
	return values, nil
}

// compare returns an error that names the tree's entries that the checkpoint does not have as they are.
func (c *Checkpoint) compare(tree params.Tree) error {
	held := make(map[string]tensor, len(c.manifest.Tensors))
	for _, t := range c.manifest.Tensors {
		held[t.Name] = t
	}
	var differ []string
	for _, spec := range tree {
		t, ok := held[spec.Name]
		switch {
		case !ok:
			differ = append(differ, fmt.Sprintf("%s is not in the checkpoint", spec.Name))
		case t.dtype() != spec.Shape.DType:
			differ = append(differ, fmt.Sprintf("%s has element type %s in the checkpoint, %s in the model",
				spec.Name, t.dtype(), spec.Shape.DType))
		case !slices.Equal(t.Shape, spec.Shape.Dimensions):
			differ = append(differ, fmt.Sprintf("%s has shape %v in the checkpoint, %v in the model",
				spec.Name, t.Shape, spec.Shape.Dimensions))
		}
	}
	if len(differ) == 0 {
		return nil
	}
	const most = 5
	if n := len(differ); n > most {
		differ = append(differ[:most], fmt.Sprintf("and %d more", n-most))
	}
	return fmt.Errorf("checkpoint: %s does not fit the model: %s; make the model of the configuration that was saved",
		c.Path, strings.Join(differ, "; "))
}

// dataFile is a data file and what the manifest says of its arrays.
type dataFile struct {
	file
	arrays map[string]target
	wanted bool // whether any of them has a value
}

// target says what an array is, and where it goes if value is not nil.
type target struct {
	tensor tensor
	piece  piece
	value  *tensors.Tensor
}

// read fills the values of the file's arrays. What it filled counts only if it returns no error.
func (d *dataFile) read(ctx context.Context, name string) error {
	f, size, err := openRegular(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if size != d.Bytes {
		return fmt.Errorf("it has %d bytes, it was written with %d: %s", size, d.Bytes, remedy)
	}
	sum := sha256.New()
	r := bufio.NewReaderSize(io.TeeReader(f, sum), bufferSize)
	entries, err := readHeader(r, size)
	if err != nil {
		return fmt.Errorf("%w: %s", err, remedy)
	}
	if len(entries) != len(d.arrays) {
		return fmt.Errorf("it has %d arrays, the manifest says %d: %s", len(entries), len(d.arrays), remedy)
	}
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		to, ok := d.arrays[e.name]
		if !ok {
			return fmt.Errorf("it has an array %q that is not in the manifest: %s", e.name, remedy)
		}
		dtype, shape := inFile(to.tensor.dtype(), to.piece.Size)
		if e.DType != dtype || !slices.Equal(e.Shape, shape) {
			return fmt.Errorf("array %q is %s %v, the manifest says %s %v: %s", e.name, e.DType, e.Shape, dtype, shape, remedy)
		}
		if err := to.fill(r, e.Offsets[1]-e.Offsets[0]); err != nil {
			return fmt.Errorf("array %q: %w", e.name, err)
		}
	}
	if _, err := r.ReadByte(); err == nil {
		return errors.New("it grew while it was read: " + remedy)
	} else if err != io.EOF {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != d.SHA256 {
		return fmt.Errorf("its SHA-256 is %s, it was written with %s: %s", got, d.SHA256, remedy)
	}
	return nil
}

// fill reads the array's n bytes into its place in the value.
func (to target) fill(r io.Reader, n int64) error {
	if to.value == nil {
		_, err := io.CopyN(io.Discard, r, n)
		return err
	}
	var readErr error
	err := to.value.MutableBytes(func(data []byte) {
		if to.tensor.whole(to.piece) {
			_, readErr = io.ReadFull(r, data)
			return
		}
		element := to.tensor.dtype().Size()
		for offset, run := range to.piece.runs(to.tensor.Shape) {
			if _, readErr = io.ReadFull(r, data[offset*element:][:run*element]); readErr != nil {
				return
			}
		}
	})
	return errors.Join(err, readErr)
}

// checkBools returns an error if a tensor of booleans has a byte that is neither 0 nor 1, which Go's bool cannot be.
func checkBools(t *tensors.Tensor) error {
	if t.DType() != dtypes.Bool {
		return nil
	}
	var odd error
	err := t.ConstBytes(func(data []byte) {
		if i := slices.IndexFunc(data, func(b byte) bool { return b > 1 }); i >= 0 {
			odd = fmt.Errorf("element %d of the booleans is %d: it must be 0 or 1", i, data[i])
		}
	})
	return errors.Join(err, odd)
}
