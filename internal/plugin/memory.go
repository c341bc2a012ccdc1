//go:build !resident

package plugin

/*
#include "memory.h"
#include "pjrt.h"

static int keep(const char *path) {
	void *library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
	return library && memory_keep(library);
}
*/
import "C"

import (
	"errors"
	"os"
	"sync"
	"unsafe"
)

var kept sync.Map // whether a plugin keeps memory, by its path

// KeepMemory has a plugin's large blocks stay mapped after XLA frees them, at most a sixteenth above the most that were
// in use at a time, and reports whether that is possible. It holds until the process ends. The plugin must be loaded.
func KeepMemory(p Plugin) bool {
	keep, _ := kept.LoadOrStore(p.Path, sync.OnceValue(func() bool {
		path := C.CString(p.Path)
		defer C.free(unsafe.Pointer(path))
		return C.keep(path) != 0
	}))
	return keep.(func() bool)()
}

// ShareMemory makes memory that other processes can map, in which plugins that are loaded later have all their blocks.
// It returns its file, and the address at which this process has it. Call it once, before [KeepMemory].
func ShareMemory() (*os.File, uintptr, error) {
	var at *C.char
	fd := C.memory_share(&at)
	if fd < 0 {
		return nil, 0, errors.New("this system has no memory that processes can share (memfd_create, and 1 TiB of addresses): " +
			"run notebooks with --in-process")
	}
	return os.NewFile(uintptr(fd), "shared memory"), uintptr(unsafe.Pointer(at)), nil
}

// FreeMemory returns the memory that is kept and not in use to the operating system.
func FreeMemory() { C.memory_free() }

// Memory returns the bytes of large blocks that plugins which keep memory use, and that are kept for later.
func Memory() (used, unused int) {
	var u, k C.size_t
	C.memory_sizes(&u, &k)
	return int(u), int(k)
}
