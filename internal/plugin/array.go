//go:build !resident

package plugin

/*
#include "pjrt.h"

static char *make_array(const char *path, PJRT_Client_CreateUninitializedBuffer_Args *args) {
	const char *problem = NULL;
	const PJRT_Api *api = pjrt_api(path, &problem);
	if (!api || !PJRT_HAS(api, PJRT_Client_CreateUninitializedBuffer)) return strdup("its table of functions is too short");
	args->struct_size = PJRT_Client_CreateUninitializedBuffer_Args_STRUCT_SIZE;
	return pjrt_failed(api, api->PJRT_Client_CreateUninitializedBuffer(args));
}
*/
import "C"

import (
	"fmt"
	"unsafe"
)

// MakeArray makes an array (PJRT_Buffer*) on a device of a client, whose content is to be written by the caller.
func MakeArray(p Plugin, client, device unsafe.Pointer, dtype int, dims []int) (unsafe.Pointer, error) {
	path := C.CString(p.Path)
	defer C.free(unsafe.Pointer(path))
	args := (*C.PJRT_Client_CreateUninitializedBuffer_Args)(C.calloc(1,
		C.PJRT_Client_CreateUninitializedBuffer_Args_STRUCT_SIZE+C.size_t(8*len(dims))))
	defer C.free(unsafe.Pointer(args))
	at := unsafe.Add(unsafe.Pointer(args), C.PJRT_Client_CreateUninitializedBuffer_Args_STRUCT_SIZE)
	for i, d := range dims {
		unsafe.Slice((*C.int64_t)(at), len(dims))[i] = C.int64_t(d)
	}
	args.client, args.device = (*C.PJRT_Client)(client), (*C.PJRT_Device)(device)
	args.shape_dims, args.shape_num_dims = (*C.int64_t)(at), C.size_t(len(dims))
	args.shape_element_type = C.PJRT_Buffer_Type(dtype)
	if problem := C.make_array(path, args); problem != nil {
		defer C.free(unsafe.Pointer(problem))
		return nil, fmt.Errorf("plugin %q cannot make an array: %s", p.Path, C.GoString(problem))
	}
	return unsafe.Pointer(args.buffer), nil
}
