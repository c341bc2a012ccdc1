package testkernel

/*
#include <stdint.h>
const char *shardbook_test_call(void *, int, int, int, const int *, void **, const int64_t *, int64_t *);
void *shardbook_test_on_cpu(void *);
*/
import "C"

import (
	"unsafe"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/compute/dtypes/float16"
	"golang.org/x/sys/unix"
)

// Array is an operand or a result of [Call], with up to four axes, in memory that Guarded made.
type Array struct {
	Type dtypes.DType
	Dims []int
	Data []byte
}

// Size is the number of elements.
func (a Array) Size() int {
	n := 1
	for _, d := range a.Dims {
		n *= d
	}
	return n
}

// Guarded returns an array between two pages that must not be touched: the process ends if a kernel does. It lies
// against the page behind it or, atStart, the one before it. free unmaps it.
func Guarded(atStart bool, t dtypes.DType, dims ...int) (a Array, free func(), err error) {
	a = Array{Type: t, Dims: dims}
	page, bytes := unix.Getpagesize(), a.Size()*t.Size()
	inside := max(1, (bytes+page-1)/page) * page
	memory, err := unix.Mmap(-1, 0, inside+2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return a, nil, err
	}
	free = func() { unix.Munmap(memory) }
	for _, guard := range [][]byte{memory[:page], memory[page+inside:]} {
		if err := unix.Mprotect(guard, unix.PROT_NONE); err != nil {
			free()
			return a, nil, err
		}
	}
	from := page + inside - bytes
	if atStart {
		from = page
	}
	a.Data = memory[from : from+bytes : from+bytes]
	return a, free, nil
}

// Set stores values, rounded to the array's type.
func (a Array) Set(values []float32) {
	for i, v := range values {
		at := unsafe.Pointer(&a.Data[i*a.Type.Size()])
		switch a.Type {
		case dtypes.Float32:
			*(*float32)(at) = v
		case dtypes.BFloat16:
			*(*bfloat16.BFloat16)(at) = bfloat16.FromFloat32(v)
		default:
			*(*float16.Float16)(at) = float16.FromFloat32(v)
		}
	}
}

// Values returns the array's values.
func (a Array) Values() []float32 {
	values := make([]float32, a.Size())
	for i := range values {
		at := unsafe.Pointer(&a.Data[i*a.Type.Size()])
		switch a.Type {
		case dtypes.Float32:
			values[i] = *(*float32)(at)
		case dtypes.BFloat16:
			values[i] = (*(*bfloat16.BFloat16)(at)).Float32()
		default:
			values[i] = (*(*float16.Float16)(at)).Float32()
		}
	}
	return values
}

// Call calls a kernel without XLA, as if there were three threads, and returns its error's text, or "".
func Call(handler unsafe.Pointer, operands, results []Array) string {
	return CallOn(0, handler, operands, results)
}

// CallOn is [Call] in the program of a device.
func CallOn(device int, handler unsafe.Pointer, operands, results []Array) string {
	all := append(append([]Array{}, operands...), results...)
	types, ranks := make([]C.int, len(all)), make([]C.int64_t, len(all))
	dims, data := make([]C.int64_t, 4*len(all)), make([]unsafe.Pointer, len(all))
	for i, a := range all {
		types[i], ranks[i] = C.int(xlaTypes[a.Type]), C.int64_t(len(a.Dims))
		if len(a.Data) > 0 {
			data[i] = unsafe.Pointer(&a.Data[0]) // not Go's memory
		}
		for j, d := range a.Dims {
			dims[4*i+j] = C.int64_t(d)
		}
	}
	return C.GoString(C.shardbook_test_call(handler, C.int(device), C.int(len(operands)), C.int(len(results)),
		&types[0], &data[0], &ranks[0], &dims[0]))
}

// Stream is the stream of calls by Call and OnCPU.
const Stream = 0x5eed

// OnCPU returns a handler of a kernel for CPUs that calls one for GPUs, with a stream. There are at most eight.
func OnCPU(handler unsafe.Pointer) unsafe.Pointer {
	at := C.shardbook_test_on_cpu(handler)
	if at == nil {
		panic("testkernel: OnCPU was called more than eight times")
	}
	return at
}

// xlaTypes are XLA's numbers of types, as in foreign.h.
var xlaTypes = map[dtypes.DType]int{dtypes.Float16: 10, dtypes.Float32: 11, dtypes.BFloat16: 16, dtypes.Int32: 4,
	dtypes.Int64: 5}
