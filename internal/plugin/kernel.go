//go:build !resident

package plugin

/*
#include "pjrt.h"

// Of XLA's pjrt_c_api_ffi_extension.h, which go-xla does not have. Before PJRT 0.9x the arguments had one more field;
// there XLA finds them too short and returns an error.
typedef struct {
	size_t struct_size;
	const char *name;
	size_t name_size;
	void *handler;
	const char *platform;
	size_t platform_size;
	int traits;
} register_args;
typedef struct {
	PJRT_Extension_Base base;
	void *register_type, *add_user_data;
	void *(*register_handler)(register_args *);
} ffi;

static const char *register_kernel(const char *path, const char *name, const char *platform, void *handler) {
	const char *problem = NULL;
	const PJRT_Api *api = pjrt_api(path, &problem);
	if (!api) return problem;
	ffi *found = pjrt_extension(api, PJRT_Extension_Type_FFI, sizeof(ffi));
	if (!found) return "it has no foreign-function interface";
	register_args args = { sizeof args, name, strlen(name), handler, platform, strlen(platform), 0 };
	return found->register_handler(&args) ? "it refuses the kernel" : NULL;
}

static void *symbol(const char *library, const char *name) {
	void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	return handle ? dlsym(handle, name) : NULL;
}
*/
import "C"

import (
	"fmt"
	"unsafe"
)

// RegisterKernel makes a C function callable from programs on the plugin's devices under a name. The plugin must be
// loaded.
func RegisterKernel(p Plugin, name string, handler unsafe.Pointer) error {
	path, target, platform := C.CString(p.Path), C.CString(name), C.CString(string(p.Platform))
	defer C.free(unsafe.Pointer(path))
	defer C.free(unsafe.Pointer(target))
	defer C.free(unsafe.Pointer(platform))
	if problem := C.register_kernel(path, target, platform, handler); problem != nil {
		return fmt.Errorf("kernel %q cannot be registered with plugin %q: %s", name, p.Path, C.GoString(problem))
	}
	return nil
}

// Symbol loads a library and returns the address of one of its functions.
func Symbol(library, name string) (unsafe.Pointer, error) {
	path, text := C.CString(library), C.CString(name)
	defer C.free(unsafe.Pointer(path))
	defer C.free(unsafe.Pointer(text))
	at := C.symbol(path, text)
	if at == nil {
		return nil, fmt.Errorf("library %q cannot be loaded, or has no function %q", library, name)
	}
	return at, nil
}
