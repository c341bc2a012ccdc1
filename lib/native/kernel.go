package native

import (
	"fmt"
	"sync/atomic"

	"github.com/shardbook/shardbook/lib/xla"
)

// made numbers kernels, because XLA needs a unique name for each kernel of the process, and two sources may each have a
// layer_norm.
var made atomic.Int64

// Kernel makes an XLA kernel of a bound function, which XLA programs call on the devices' own buffers. The function's
// parameters are the results of the call, in order, then the operands: slices for arrays in row-major order, numbers
// for scalars. With results y and mean of operands x and epsilon, the function is
//
//	const char *f(slice_f32 y, slice_f32 mean, slice_f32 x, float epsilon)
//
// The function must not write to operands, and must return the same results for the same operands. If it returns a
// message, or a call has operands of other types, the program fails; see [xla.Kernel.Call]. For a kernel that uses
// XLA's threads or needs shapes, write a handler with foreign.h and give its Symbol to [xla.NewKernel].
//
// Kernels are never freed: make one when the library is loaded, not for each call.
//
// It returns an error if the function is not bound, has pointer parameters, returns a number, or is from CUDA.
func (l *Library) Kernel(name string) (*xla.Kernel, error) {
	for i, b := range l.bound {
		if b.name != name {
			continue
		}
		handler := symbol(l.handle, kernelName(i))
		if handler == nil {
			return nil, fmt.Errorf("native: XLA cannot call %s, a %v: want a function in C of slices "+
				"and numbers, with no result but an error", name, b.variable.Type())
		}
		return xla.NewKernel(fmt.Sprintf("native%d_%s", made.Add(1), name), handler), nil
	}
	return nil, fmt.Errorf("native: %q is not bound: give Load a Bind for it", name)
}
