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
	path, config, sizes := C.CString(p.Path), C.CString(gpu.config()), C.CString(fmt.Sprintf("1x1x%d", n))
	defer C.free(unsafe.Pointer(path))
	defer C.free(unsafe.Pointer(config))
	defer C.free(unsafe.Pointer(sizes))
	var through unsafe.Pointer
	problem := C.target_table(table, path, &through)
	if problem == nil {
		problem = C.target_set(client, config, sizes)
	}
	if problem != nil {
		defer C.free(unsafe.Pointer(problem))
		return nil, fmt.Errorf("plugin %q cannot compile for a %s: %s", p.Path, gpu.Name, C.GoString(problem))
	}
	return through, nil
}
