package checkpoint

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/tensors"
)

// dataFile is a data file and what the manifest says about its arrays.
type dataFile struct {
	file
	arrays map[string]target
	wanted bool // whether any of them has a value
}

// target describes an array, and the values that it is read into.
type target struct {
	tensor tensor
	piece  piece
	into   []destination
}

// destination is a value for the elements of a tensor from first to before end, in row-major order.
type destination struct {
	first, end int
	value      *tensors.Tensor
}

// read fills the values of the file's arrays. They are valid only if it returns no error.
func (d *dataFile) read(ctx context.Context, name string) error {
	f, size, err := openRegular(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if size != d.Bytes {
		return fmt.Errorf("it has %d bytes, but was written with %d: %s", size, d.Bytes, remedy)
	}
	sum := sha256.New()
	r := bufio.NewReaderSize(io.TeeReader(f, sum), bufferSize)
	entries, err := readHeader(r, size)
	if err != nil {
		return fmt.Errorf("%w: %s", err, remedy)
	}
	if len(entries) != len(d.arrays) {
		return fmt.Errorf("it has %d arrays, but the manifest says %d: %s", len(entries), len(d.arrays), remedy)
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
			return fmt.Errorf("array %q is %s %v, but the manifest says %s %v: %s", e.name, e.DType, e.Shape, dtype,
				shape, remedy)
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
		return fmt.Errorf("its SHA-256 is %s, but was %s when it was written: %s", got, d.SHA256, remedy)
	}
	return nil
}

// fill reads the array's n bytes into their places in the values.
func (to target) fill(r *bufio.Reader, n int64) error {
	if len(to.into) == 0 {
		_, err := io.CopyN(io.Discard, r, n)
		return err
	}
	bits := to.tensor.dtype().Bits()
	return withMemory(to.into, func(memory [][]byte) error {
		for offset, run := range to.piece.runs(to.tensor.Shape) {
			// In bytes; types smaller than a byte are never in pieces, so they begin at 0.
			at, end := offset*bits/8, ((offset+run)*bits+7)/8
			if d := to.into[0]; len(to.into) == 1 && d.first <= offset && offset+run <= d.end { // without the buffer
				begin := d.first * bits / 8
				if _, err := io.ReadFull(r, memory[0][at-begin:end-begin]); err != nil {
					return err
				}
				continue
			}
			for at < end {
				if _, err := r.Peek(1); err != nil { // fills an empty buffer
					return err
				}
				chunk, _ := r.Peek(min(r.Buffered(), end-at))
				for i, d := range to.into {
					begin := d.first * bits / 8
					lower, upper := max(at, begin), min(at+len(chunk), (d.end*bits+7)/8)
					if lower < upper {
						copy(memory[i][lower-begin:], chunk[lower-at:upper-at])
					}
				}
				r.Discard(len(chunk))
				at += len(chunk)
			}
		}
		return nil
	})
}

// withMemory calls do with the memory of all values at the same time.
func withMemory(into []destination, do func(memory [][]byte) error) error {
	memory := make([][]byte, 0, len(into))
	var next func() error
	next = func() (err error) {
		if len(memory) == len(into) {
			return do(memory)
		}
		outer := into[len(memory)].value.MutableBytes(func(data []byte) {
			memory = append(memory, data)
			err = next()
		})
		return errors.Join(outer, err)
	}
	return next()
}

// checkBools returns an error if a boolean's byte is neither 0 nor 1, which is not a valid Go bool.
func checkBools(dtype dtypes.DType, data []byte) error {
	if dtype != dtypes.Bool {
		return nil
	}
	if i := slices.IndexFunc(data, func(b byte) bool { return b > 1 }); i >= 0 {
		return fmt.Errorf("element %d of the booleans is %d: it must be 0 or 1", i, data[i])
	}
	return nil
}
