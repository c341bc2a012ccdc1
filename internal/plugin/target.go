//go:build !resident

package plugin

/*
#include <stdlib.h>

#include "target.h"
*/
import "C"

import (
	"fmt"
	"sync"
	"unsafe"
)

// pairing guards the pair of plugins that compile for targets, and the list of targets.
var pairing sync.Mutex

// CompileFor returns a function table (PJRT_Api*) for a client of XLA for CPUs (PJRT_Client*), through which the plugin
// p compiles programs for n GPUs of a model that need not be here. The programs can be asked, but not run.
func CompileFor(table, client unsafe.Pointer, p Plugin, gpu Model, n int) (unsafe.Pointer, error) {
	if err := p.complete(); err != nil {
		return nil, err
	}
	pairing.Lock()
	defer pairing.Unlock()
	refused := func(problem *C.char) error {
		return fmt.Errorf("plugin %q cannot compile for a %s: %s", p.Path, gpu.Name, C.GoString(problem))
	}
	path := C.CString(p.Path)
	defer C.free(unsafe.Pointer(path))
	var problem *C.char
	through := C.target_table(table, path, &problem)
	if through == nil {
		return nil, refused(problem)
	}
	config, sizes := C.CString(gpu.config()), C.CString(fmt.Sprintf("1x1x%d", n))
	defer C.free(unsafe.Pointer(config))
	defer C.free(unsafe.Pointer(sizes))
	if problem := C.target_set(client, config, sizes); problem != nil {
		defer C.free(unsafe.Pointer(problem))
		return nil, refused(problem)
	}
	return through, nil
}
