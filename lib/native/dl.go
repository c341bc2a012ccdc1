package native

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

// dlerror's message belongs to the calling thread.
static void *open_library(const char *path, const char **message) {
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	*message = handle ? NULL : dlerror();
	return handle;
}

static const char *call(void *function, const uint64_t *words, void *result) {
	return ((const char *(*)(const uint64_t *, void *))function)(words, result);
}
*/
import "C"

import (
	"errors"
	"unsafe"
)

func open(path string) (unsafe.Pointer, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var message *C.char
	handle := C.open_library(name, &message)
	if handle == nil {
		return nil, errors.New(C.GoString(message))
	}
	return handle, nil
}

func symbol(handle unsafe.Pointer, name string) unsafe.Pointer {
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	return C.dlsym(handle, text)
}

// call calls a function that withBindings generated and returns its message. The words hold the arguments. Pointers
// among them must be pinned.
func call(function unsafe.Pointer, words []uint64, result unsafe.Pointer) string {
	return C.GoString(C.call(function, (*C.uint64_t)(unsafe.SliceData(words)), result))
}
