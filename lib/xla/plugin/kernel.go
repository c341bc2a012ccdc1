package plugin

/*
#include <stdlib.h>
#include <string.h>
#include "pjrt.h"

// Of XLA's pjrt_c_api_ffi_extension.h. Before PJRT 0.9x the arguments had one more field; there XLA finds them too
// short and returns an error.
typedef struct {
	size_t struct_size;
	const char *name;
	size_t name_size;
	void *handler;
	const char *platform;
	size_t platform_size;
	int traits;
} register_args;
typedef struct { pjrt_extension base; void *register_type,
	*add_user_data; void *(*register_handler)(register_args *); } ffi;
enum { FFI = 5 };

static const char *register_kernel(const char *path, const char *name, void *handler) {
	const char *problem = NULL;
	const pjrt_head *api = pjrt_api(path, &problem);
	if (!api) return problem;
	for (pjrt_extension *e = api->extension; e; e = e->next)
		if (e->type == FFI && e->struct_size >= sizeof(ffi)) {
			register_args args = { sizeof args, name, strlen(name), handler, "cpu", 3, 0 };
			return ((ffi *)e)->register_handler(&args) ? "it refuses the kernel" : NULL;
		}
	return "it has no foreign-function interface";
}
*/
import "C"

import (
	"fmt"
	"unsafe"
)

// RegisterKernel makes a C function callable from programs on the CPU under a name. The plugin must be loaded.
func RegisterKernel(p Plugin, name string, handler unsafe.Pointer) error {
	path, target := C.CString(p.Path), C.CString(name)
	defer C.free(unsafe.Pointer(path))
	defer C.free(unsafe.Pointer(target))
	if problem := C.register_kernel(path, target, handler); problem != nil {
		return fmt.Errorf("kernel %q cannot be told to plugin %q: %s", name, p.Path, C.GoString(problem))
	}
	return nil
}
