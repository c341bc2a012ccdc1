//go:build !resident

package plugin

/*
#include "pjrt.h"

static char *device_memory(const PJRT_Api *api, PJRT_Device_MemoryStats_Args *args) {
	if (!PJRT_HAS(api, PJRT_Device_MemoryStats)) return strdup("the plugin's table of functions is too short");
	args->struct_size = PJRT_Device_MemoryStats_Args_STRUCT_SIZE;
	return pjrt_failed(api, api->PJRT_Device_MemoryStats(args));
}
*/
import "C"

import (
	"fmt"
	"unsafe"
)

// DeviceMemory returns the bytes that the allocator of a device (PJRT_Device*) has given out, the most that it ever
// had, and its limit. The latter two are 0 if the plugin does not say. table is the plugin's (PJRT_Api*).
func DeviceMemory(table, device unsafe.Pointer) (used, peak, limit int64, err error) {
	args := (*C.PJRT_Device_MemoryStats_Args)(C.calloc(1, C.PJRT_Device_MemoryStats_Args_STRUCT_SIZE))
	defer C.free(unsafe.Pointer(args))
	args.device = (*C.PJRT_Device)(device)
	if problem := C.device_memory((*C.PJRT_Api)(table), args); problem != nil {
		defer C.free(unsafe.Pointer(problem))
		return 0, 0, 0, fmt.Errorf("the device does not count its memory: %s", C.GoString(problem))
	}
	if args.peak_bytes_in_use_is_set {
		peak = int64(args.peak_bytes_in_use)
	}
	if args.bytes_limit_is_set {
		limit = int64(args.bytes_limit)
	}
	return int64(args.bytes_in_use), peak, limit, nil
}
