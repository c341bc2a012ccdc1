package checkpoint

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/params"
)

// bufferSize gathers small tensors into larger reads and writes; large ones go past the buffer.
const bufferSize = 64 << 10

// Save writes a checkpoint of the step, at least 0, into the folder dir, which it makes if need be, and returns the
// checkpoint's own folder. There is one value for each entry of the tree, in its order, on the host or on any device. The
// names go into the file as they are. The metadata is anything that [json.Marshal] takes, such as a struct of the model's
// and the optimizer's settings; it may be nil. Names of axes are not saved.
//
// The checkpoint appears whole or not at all, however the process ends: it is written aside, reaches the disk, and is
// then given its name. A checkpoint of that step which is there already is never replaced: [fs.ErrExist]. Several
// goroutines, processes or hosts may save into one folder at once, as long as the file system's locks (flock) hold
// between them; of those that save the same step, one wins.
//
// Then all but the newest keep of the complete checkpoints up to this step are removed; 0 keeps all. Those of later steps
// are left alone: they are another run's, or this run has gone back. If only that fails, the path is returned with the
// error.
//
// Cancelling ctx stops Save between two tensors, and leaves nothing behind. Save takes no copy of the tensors but the
// one, on the host, that a single tensor on a device with memory of its own needs. They must not change until it returns.
func Save(ctx context.Context, dir string, step int, meta any, tree params.Tree, values []*tensors.Tensor, keep int) (
	path string, err error) {

	if err := checkInput(step, tree, values, keep); err != nil {
		return "", fmt.Errorf("checkpoint: %w", err)
	}
	metadata, err := json.Marshal(meta)
	if err != nil {
		return "", fmt.Errorf("checkpoint: the metadata cannot be written as JSON: %w", err)
	}
	dir = filepath.Clean(dir)
	path = filepath.Join(dir, folderName(step))
	if err := save(ctx, path, step, metadata, tree, values); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return "", fmt.Errorf("checkpoint: step %d is saved already, and was left as it is: %w; "+
				"move %s away, or save into another folder", step, fs.ErrExist, path)
		}
		return "", fmt.Errorf("checkpoint: saving %s: %w", path, err)
	}
	if err := syncFolder(dir); err != nil {
		return path, fmt.Errorf("checkpoint: %s is saved, but may not have reached the disk: %w", path, err)
	}
	if err := removeOld(dir, step, keep); err != nil {
		return path, fmt.Errorf("checkpoint: %s is saved, but an older one could not be removed: %w", path, err)
	}
	return path, nil
}

func checkInput(step int, tree params.Tree, values []*tensors.Tensor, keep int) error {
	if step < 0 || keep < 0 {
		return fmt.Errorf("step %d, keep %d: neither may be negative", step, keep)
	}
	if err := tree.Validate(); err != nil {
		return err
	}
	for _, spec := range tree {
		if !utf8.ValidString(spec.Name) || spec.Name == metadataKey {
			return fmt.Errorf("a safetensors file cannot hold the name %q: choose another", spec.Name)
		}
	}
	if _, err := params.Zip(tree, values); err != nil {
		return err
	}
	for i, spec := range tree {
		if err := values[i].CheckValid(); err != nil { // also of a nil tensor, on which params.Check would panic
			return fmt.Errorf("the value of %q cannot be read: %w", spec.Name, err)
		}
	}
	return params.Check(tree, values)
}

// save makes the checkpoint at the path, or nothing.
func save(ctx context.Context, path string, step int, metadata []byte, tree params.Tree, values []*tensors.Tensor) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if _, err := os.Lstat(path); err == nil {
		return fs.ErrExist
	}
	dir := filepath.Dir(path)
	if err := makeFolder(dir); err != nil {
		return err
	}
	removeAbandoned(dir)
	draft, err := newDraft(path)
	if err != nil {
		return err
	}
	defer draft.discard()
	data, err := writeData(ctx, draft.data, step, tree, values)
	if err != nil {
		return err
	}
	m := manifest{Format: format, Step: step, Meta: metadata, Files: []file{data}, Tensors: []tensor{}}
	for _, spec := range tree {
		shape := append([]int{}, spec.Shape.Dimensions...) // not nil, which would be null in the manifest
		m.Tensors = append(m.Tensors, tensor{
			Name: spec.Name, DType: names[spec.Shape.DType], Shape: shape,
			Pieces: []piece{{File: data.Name, Array: spec.Name, Start: make([]int, len(shape)), Size: shape}},
		})
	}
	text, err := m.encode()
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return draft.publish(text, path)
}

// writeData writes the tensors into a data file, makes sure that it has reached the disk, and describes it.
func writeData(ctx context.Context, f *os.File, step int, tree params.Tree, values []*tensors.Tensor) (file, error) {
	// Elements of a wide type come first, so that all lie at multiples of their own size.
	order := make([]int, len(tree))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return tree[b].Shape.DType.Size() - tree[a].Shape.DType.Size() })

	entries := make([]entry, len(tree))
	at := int64(0)
	for i, index := range order {
		spec := tree[index]
		dtype, shape := inFile(spec.Shape.DType, spec.Shape.Dimensions)
		entries[i] = entry{name: spec.Name, DType: dtype, Shape: append([]int{}, shape...),
			Offsets: []int64{at, at + spec.Bytes()}}
		at += spec.Bytes()
	}
	header, err := encodeHeader(entries, map[string]string{"step": strconv.Itoa(step)})
	if err != nil {
		return file{}, err
	}
	sum := sha256.New()
	w := bufio.NewWriterSize(io.MultiWriter(f, sum), bufferSize)
	w.Write(header) // a bufio.Writer keeps its first error, which every later call returns
	for _, index := range order {
		if err := ctx.Err(); err != nil {
			return file{}, err
		}
		if err := writeTensor(w, values[index], tree[index].Bytes()); err != nil {
			return file{}, fmt.Errorf("writing %q: %w", tree[index].Name, err)
		}
	}
	if err := errors.Join(w.Flush(), f.Sync()); err != nil {
		return file{}, err
	}
	return file{Name: filepath.Base(f.Name()), Bytes: int64(len(header)) + at, SHA256: hex.EncodeToString(sum.Sum(nil))}, nil
}

// writeTensor writes the n bytes of a tensor.
func writeTensor(w io.Writer, t *tensors.Tensor, n int64) error {
	if !t.HasLocal() && !t.IsShared() {
		// GoMLX keeps the host copy that reading makes, also one that it failed to fill, which would be read as zeros the
		// next time.
		defer t.FinalizeLocal()
	}
	if err := checkBools(t); err != nil {
		return err
	}
	var writeErr error
	err := t.ConstBytes(func(data []byte) {
		if int64(len(data)) != n {
			writeErr = fmt.Errorf("it has %d bytes, its shape says %d", len(data), n)
			return
		}
		_, writeErr = w.Write(data)
	})
	return errors.Join(err, writeErr)
}
