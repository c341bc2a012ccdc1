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

// bufferSize gathers small tensors into larger reads and writes; large ones go past the buffer.
const bufferSize = 64 << 10

// Written is what Commit must be told of a writer's file. It goes from rank to rank as JSON.
type Written struct {
	// Draft is the name of the folder that was written into.
	Draft string `json:"draft"`
	// File is the file, as the manifest has it.
	File file `json:"file"`
	// Tensors has, for each part, the whole tensor and the pieces of it that lie in the file.
	Tensors []tensor `json:"tensors"`
}

// WriteParts writes the parts that one writer has, all in one file (data-00003.safetensors for writer 3), into the
// draft of the step's checkpoint, whose folder is at the path ([Shared.Path]). It returns when the file has reached the
// disk. Writers write at the same time, in any processes or hosts that see the folder, each under a number of its own,
// at least 0; a number whose file is there already is an error, [fs.ErrExist]. A writer that has nothing writes a file
// with no arrays.
//
// Cancelling ctx stops it between two parts. After an error the writer's file is gone, and the draft is as it was: the
// writer may write again, or the checkpoint be discarded. The values must not change until WriteParts returns; as with
// [Save], no more than one of them is copied at a time.
func WriteParts(ctx context.Context, path string, writer, step int, parts []Part) (Written, error) {
	written, err := writeParts(ctx, path, writer, step, parts)
	if err != nil {
		return Written{}, fmt.Errorf("checkpoint: writer %d of step %d: %w", writer, step, err)
	}
	return written, nil
}

func writeParts(ctx context.Context, path string, writer, step int, parts []Part) (written Written, err error) {
	if !isDraft(filepath.Base(path), step) || writer < 0 {
		return written, fmt.Errorf("%s must be a draft of the step, and the writer at least 0: "+
			"give the Path of what Begin returned", path)
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
		return written, fmt.Errorf("%w; the checkpoint was committed or discarded, or whoever began it is gone", err)
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

// writeData writes the parts into a data file, makes sure that it has reached the disk, and describes it.
func writeData(ctx context.Context, f *os.File, step int, parts []Part) (Written, error) {
	// Elements of a wide type come first, so that all lie at multiples of their own size.
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
	w.Write(header) // a bufio.Writer keeps its first error, which every later call returns
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

// layOut says which pieces the parts are in the file of that name, and where each lies in it. The pieces of a part lie
// one after another as their elements do in its value. The bytes of all are also returned.
func layOut(name string, parts []Part) (described []tensor, entries []entry, size int64) {
	taken := map[string]bool{}
	described = []tensor{}
	for _, p := range parts {
		t := describe(p.Spec)
		for _, box := range boxes(t.Shape, p.From, p.elements()) {
			array := t.Name
			if !t.whole(box) {
				first, _ := box.span(t.Shape)
				array = fmt.Sprintf("%s#%d", t.Name, first)
			}
			for taken[array] { // by a tensor with such a name, or by the same elements, which Commit refuses
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
		// GoMLX keeps the host copy that reading makes, also one that it failed to fill, which would be read as zeros
		// the next time.
		defer t.FinalizeLocal()
	}
	var writeErr error
	err := t.ConstBytes(func(data []byte) {
		if int64(len(data)) < n {
			writeErr = fmt.Errorf("it has %d bytes, its shape says %d", len(data), n)
		} else if writeErr = checkBools(t.DType(), data[:n]); writeErr == nil {
			_, writeErr = w.Write(data[:n])
		}
	})
	return errors.Join(err, writeErr)
}
