package checkpoint

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/gomlx/gomlx/core/tensors"
)

// bufferSize is for reads and writes of small tensors; large ones bypass the buffer.
const bufferSize = 64 << 10

// Written describes a writer's file, for [Shared.Commit]. Ranks send it as JSON.
type Written struct {
	// Draft is the name of the folder that was written into.
	Draft string `json:"draft"`
	// File is the file's entry in the manifest.
	File file `json:"file"`
	// Tensors has, for each part, the full tensor and the pieces of it in the file.
	Tensors []tensor `json:"tensors"`
}

// WriteParts writes the parts of one writer into one file (data-00003.safetensors for writer 3) of the step's draft in
// the folder at the path ([Shared.Path]), and returns when the file is synced to disk. Writers write at the same time,
// from any processes or hosts that see the folder, each with its own number, at least 0. If a number's file exists
// already, the error is [fs.ErrExist]. A writer without parts writes a file without arrays.
//
// Cancelling ctx stops it between two parts. After an error the writer's file is removed: the writer may write again,
// or the checkpoint be discarded. The values must not change until WriteParts returns; like [Save], it copies at most
// one of them at a time.
func WriteParts(ctx context.Context, path string, writer, step int, parts []Part) (Written, error) {
	written, err := writeParts(ctx, path, writer, step, parts)
	if err != nil {
		return Written{}, fmt.Errorf("checkpoint: writer %d of step %d: %w", writer, step, err)
	}
	return written, nil
}

func writeParts(ctx context.Context, path string, writer, step int, parts []Part) (written Written, err error) {
	if !isDraft(filepath.Base(path), step) || writer < 0 {
		return written, fmt.Errorf("%s is not a draft of the step, or the writer is below 0: "+
			"give the Path of the checkpoint that Begin returned", path)
	}
	for _, p := range parts {
		if err := p.check(); err != nil {
			return written, err
		}
	}
	if err := ctx.Err(); err != nil {
		return written, err
	}
	f, err := os.OpenFile(filepath.Join(path, fileOf(writer)), os.O_CREATE|os.O_EXCL|os.O_WRONLY, fileMode)
	if errors.Is(err, fs.ErrExist) {
		return written, fmt.Errorf("%w; every writer needs a number of its own", err)
	} else if errors.Is(err, fs.ErrNotExist) {
		return written, fmt.Errorf("%w; the checkpoint was committed or discarded, or the process that began it ended",
			err)
	} else if err != nil {
		return written, err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			os.Remove(f.Name())
		}
	}()
	return writeData(ctx, f, step, parts)
}

// fileOf returns the name of a writer's data file.
func fileOf(writer int) string { return fmt.Sprintf("data-%05d%s", writer, dataSuffix) }

// writeData writes the parts into a data file, syncs it to disk, and describes it.
func writeData(ctx context.Context, f *os.File, step int, parts []Part) (Written, error) {
	// Wide element types come first, so that all are aligned.
	parts = slices.Clone(parts)
	slices.SortStableFunc(parts, func(a, b Part) int { return b.Spec.Shape.DType.Size() - a.Spec.Shape.DType.Size() })

	name := filepath.Base(f.Name())
	described, entries, size := layOut(name, parts)
	header, err := encodeHeader(entries, map[string]string{"step": strconv.Itoa(step)})
	if err != nil {
		return Written{}, err
	}
	sum := sha256.New()
	w := bufio.NewWriterSize(io.MultiWriter(f, sum), bufferSize)
	w.Write(header) // a bufio.Writer returns its first error from every later call
	for _, p := range parts {
		if err := ctx.Err(); err != nil {
			return Written{}, err
		}
		if n := p.bytes(); n > 0 {
			if err := writeTensor(w, p.Value, n); err != nil {
				return Written{}, fmt.Errorf("writing %q: %w", p.Spec.Name, err)
			}
		}
	}
	if err := errors.Join(w.Flush(), f.Sync()); err != nil {
		return Written{}, err
	}
	return Written{
		Draft:   filepath.Base(filepath.Dir(f.Name())),
		File:    file{Name: name, Bytes: int64(len(header)) + size, SHA256: hex.EncodeToString(sum.Sum(nil))},
		Tensors: described,
	}, nil
}

// layOut returns the parts' pieces in the file of that name, where each is in it, and the size of all. The pieces of a
// part are stored in the order of its elements.
func layOut(name string, parts []Part) (described []tensor, entries []entry, size int64) {
	taken := map[string]bool{}
	described = []tensor{}
	for _, p := range parts {
		t := describe(p.Spec)
		for _, box := range boxes(t.Shape, p.From, p.elements()) {
			array := t.Name
			if !t.full(box) {
				first, _ := box.span(t.Shape)
				array = fmt.Sprintf("%s#%d", t.Name, first)
			}
			for taken[array] { // by a tensor with such a name, or by the same elements, which Commit rejects
				array += "#"
			}
			taken[array] = true
			box.File, box.Array = name, array
			t.Pieces = append(t.Pieces, box)

			dtype, shape := inFile(t.dtype(), box.Size)
			n, _ := byteSize(t.dtype(), box.Size)
			entries = append(entries, entry{name: array, DType: dtype, Shape: shape, Offsets: []int64{size, size + n}})
			size += n
		}
		if len(t.Pieces) > 0 {
			described = append(described, t)
		}
	}
	return described, entries, size
}

// writeTensor writes the first n bytes of a tensor.
func writeTensor(w io.Writer, t *tensors.Tensor, n int64) error {
	if !t.HasLocal() && !t.IsShared() {
		// GoMLX keeps the host copy that reading makes, even one that it failed to fill, which would be read as zeros
		// the next time.
		defer t.FinalizeLocal()
	}
	var writeErr error
	err := t.ConstBytes(func(data []byte) {
		if int64(len(data)) < n {
			writeErr = fmt.Errorf("it has %d bytes, but its shape needs %d", len(data), n)
		} else if writeErr = checkBools(t.DType(), data[:n]); writeErr == nil {
			_, writeErr = w.Write(data[:n])
		}
	})
	return errors.Join(err, writeErr)
}
