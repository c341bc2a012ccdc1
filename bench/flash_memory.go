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

// peakRise calls f and returns by how much the memory of this process rose meanwhile:
// its peak over its level before, in bytes. It is 0 where the system does not say
// (Linux does), or where nobody may forget the peak.
func peakRise(f func() error) (int64, error) {
	debug.FreeOSMemory()
	C.trim() // or f might have what was freed, and nothing would rise
	if os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) != nil {
		return 0, f()
	}
	before := peakMemory()
	err := f()
	return peakMemory() - before, err
}

func peakMemory() int64 {
	text, _ := os.ReadFile("/proc/self/status")
	return procField(string(text), "VmHWM", 0)
}
