package main

/*
#include <stdlib.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

static void trim(void) {
#ifdef __GLIBC__
	malloc_trim(0);
#endif
}
*/
import "C"

import (
	"os"
	"runtime/debug"
)

// peakRise calls f and returns by how much the resident memory of this process rose: its peak over its level before, in
// bytes. It is 0 where the system does not say (Linux does), or does not allow the peak to be reset.
func peakRise(f func() error) (int64, error) {
	debug.FreeOSMemory()
	C.trim() // or f might get memory that was freed before
	if os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) != nil {
		return 0, f()
	}
	peak := func() int64 { return procBytes("/proc/self/status", "VmHWM", 0) }
	before := peak()
	err := f()
	return peak() - before, err
}
