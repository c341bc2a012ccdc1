package native

import (
	"fmt"
	"sync/atomic"

	"github.com/shardbook/shardbook/lib/xla"
)

// made numbers kernels: XLA knows one kernel of a name in a process, and two sources may each have a layer_norm.
var made atomic.Int64

// Kernel makes a kernel of a bound function, to be called inside XLA's programs on the devices' own buffers. The
// function's parameters are the call's results, in order, then its operands: slices for arrays in row-major order, and
// numbers for operands that are scalars. So y and mean of x, for a results list of two, is
//
//	const char *f(slice_f32 y, slice_f32 mean, slice_f32 x, float epsilon)
//
// The function may not write to operands, and must give the same for the same. A message that it returns, as well as a
// call with other arrays than it takes, is an error of the program; see [xla.Kernel.Call]. For a kernel that shares
// work among XLA's threads, or sees shapes, write a handler with foreign.h and give its Symbol to [xla.NewKernel].
//
// Kernels are never freed: make one where the library is loaded, and not for each call.
//
// It returns an error if the function is not bound, has parameters that are pointers or a number as result, or is
// CUDA's.
func (l *Library) Kernel(name string) (*xla.Kernel, error) {
	for i, b := range l.bound {
		if b.name != name {
			continue
		}
		handler := symbol(l.handle, kernelName(i))
		if handler == nil {
			return nil, fmt.Errorf("native: %s, a %v, is nothing that XLA calls: that is a function in C of slices "+
				"and numbers, with no result but an error", name, b.variable.Type())
		}
		return xla.NewKernel(fmt.Sprintf("native%d_%s", made.Add(1), name), handler), nil
	}
	return nil, fmt.Errorf("native: %q is not bound: give Load a Bind for it", name)
}
