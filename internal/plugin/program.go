//go:build !resident

package plugin

/*
#include "pjrt.h"

// optimized_program fills in a program, whose code the caller frees, or returns an error message, which the caller also
// frees. It calls XLA twice: for the size, and for the program.
static char *optimized_program(const char *path, PJRT_Executable *executable, PJRT_Program *p) {
	const char *problem_found = NULL;
	const PJRT_Api *api = pjrt_api(path, &problem_found);
	if (!api || !PJRT_HAS(api, PJRT_Executable_OptimizedProgram)) return strdup("its table of functions is too short");
	p->struct_size = PJRT_Program_STRUCT_SIZE;
	PJRT_Executable_OptimizedProgram_Args args = {
		PJRT_Executable_OptimizedProgram_Args_STRUCT_SIZE, NULL, executable, p };
	char *problem = pjrt_failed(api, api->PJRT_Executable_OptimizedProgram(&args));
	if (problem) return problem;
	if (!(p->code = malloc(p->code_size))) return strdup("it is too large");
	return pjrt_failed(api, api->PJRT_Executable_OptimizedProgram(&args));
}
*/
import "C"

import (
	"bytes"
	"fmt"
	"unsafe"
)

// OptimizedProgram returns a compiled program after XLA's optimizations, and its format. executable is a
// PJRT_Executable* of a plugin that Load has loaded.
func OptimizedProgram(p Plugin, executable unsafe.Pointer) (code []byte, format string, err error) {
	path := C.CString(p.Path)
	defer C.free(unsafe.Pointer(path))
	got := (*C.PJRT_Program)(C.calloc(1, C.sizeof_PJRT_Program)) // XLA writes to it: not in Go's memory
	defer C.free(unsafe.Pointer(got))
	problem := C.optimized_program(path, (*C.PJRT_Executable)(executable), got)
	defer C.free(unsafe.Pointer(got.code))
	if problem != nil {
		defer C.free(unsafe.Pointer(problem))
		return nil, "", fmt.Errorf("plugin %q does not give its optimized program: %s", p.Path, C.GoString(problem))
	}
	return bytes.Clone(unsafe.Slice((*byte)(unsafe.Pointer(got.code)), got.code_size)),
		C.GoStringN(got.format, C.int(got.format_size)), nil
}
