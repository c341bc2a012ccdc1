package residual

import (
	"context"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// Buffer is where a rank's gradients are fused before they are communicated: their elements one tensor after the other,
// as float32, in which they are reduced whatever type they have. Many small tensors so make few large messages. A
// buffer for all of them at once, which frameworks used to have, is as large as the model in float32; one of constant
// size is enough for large messages (C_B, ZeRO §6.2).
//
// It is for one goroutine.
type Buffer struct {
	size     int // elements; 0 for as many as there are
	memory   []float32
	messages int
}

// NewBuffer returns a buffer of so many bytes, 4 for each element; with 0 it grows to hold all tensors of a call at
// once. A size that holds no whole number of elements is an error.
func NewBuffer(bytes int) (*Buffer, error) {
	if bytes < 0 || bytes%4 != 0 {
		return nil, fmt.Errorf("residual: a buffer of %d bytes: give a multiple of 4, or 0 for as many as there are", bytes)
	}
	return &Buffer{size: bytes / 4, memory: make([]float32, bytes/4)}, nil
}

// Bytes returns the buffer's memory now.
func (b *Buffer) Bytes() int64 { return int64(len(b.memory)) * 4 }

// Messages returns how many all-reduces the buffer has made: one for each time that it was full, and one for the last
// elements of each call.
func (b *Buffer) Messages() int { return b.messages }

// AllReduce reduces tensors, on CPU devices or on the host, with those of all other ranks, and writes the results over
// them: in float32, rounded once to the tensor's own type. The result's bits do not depend on the buffer's size. All
// ranks give as many elements.
//
// A tensor that is not float32, bfloat16 or float16, or that has no elements or memory, is an error, and then nothing
// is sent. After another error some of the tensors are reduced and some are not.
func (b *Buffer) AllReduce(ctx context.Context, g group.Group, of []*tensors.Tensor, op group.Op) error {
	defer runtime.KeepAlive(of) // whose memory the arrays are
	total := 0
	arrays := make([]array, len(of))
	for i, t := range of {
		bytes, err := memory(t)
		if err == nil {
			arrays[i], err = newArray(bytes, t.DType())
		}
		if err != nil {
			return fmt.Errorf("residual: tensor %d of %d to all-reduce: %w", i, len(of), err)
		}
		total += arrays[i].len()
	}
	if b.size == 0 && len(b.memory) < total {
		b.memory = make([]float32, total)
	}
	for at := 0; at < total; {
		fused := b.memory[:min(len(b.memory), total-at)]
		each(arrays, at, len(fused), func(a array, from, into, n int) { a.read(fused[into:into+n], from) })
		if err := group.AllReduce(ctx, g, fused, op); err != nil {
			return fmt.Errorf("residual: all-reducing elements %d to %d of %d: %w", at, at+len(fused), total, err)
		}
		b.messages++
		each(arrays, at, len(fused), func(a array, from, into, n int) { a.write(fused[into:into+n], from) })
		at += len(fused)
	}
	return nil
}

// each goes through n elements of the arrays, counted through all of them from at: n of them lie in an array from an
// element on, and in a buffer of these n from another.
func each(arrays []array, at, n int, do func(a array, from, into, n int)) {
	into := 0
	for _, a := range arrays {
		if here := min(a.len()-at, n-into); here > 0 {
			do(a, at, into, here)
			into += here
		}
		at = max(0, at-a.len())
	}
}

// array is a tensor's elements: of 32 bits, or of 16 with their type.
type array struct {
	full []float32
	half []uint16
	as   *half
}

func newArray(bytes []byte, of dtypes.DType) (array, error) {
	start, n := unsafe.Pointer(unsafe.SliceData(bytes)), len(bytes)/of.Size()
	switch of {
	case dtypes.Float32:
		return array{full: unsafe.Slice((*float32)(start), n)}, nil
	case dtypes.BFloat16:
		return array{half: unsafe.Slice((*uint16)(start), n), as: bfloat16()}, nil
	case dtypes.Float16:
		return array{half: unsafe.Slice((*uint16)(start), n), as: float16()}, nil
	}
	return array{}, fmt.Errorf("it holds %v: convert it to float32, bfloat16 or float16", of)
}

func (a array) len() int { return len(a.full) + len(a.half) }

func (a array) read(into []float32, from int) {
	if a.as == nil {
		copy(into, a.full[from:])
		return
	}
	for i, bits := range a.half[from : from+len(into)] {
		into[i] = a.as.numbers[bits]
	}
}

func (a array) write(values []float32, from int) {
	if a.as == nil {
		copy(a.full[from:], values)
		return
	}
	for i, x := range values {
		a.half[from+i] = a.as.bits(x)
	}
}
