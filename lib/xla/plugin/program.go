package plugin

/*
#include <stdlib.h>
#include <string.h>
#include "pjrt.h"

// A part of XLA's pjrt_c_api.h, whose layout never changes: new functions are only
// added at the end of the table. The numbers count the table's functions from 0.
typedef struct { size_t struct_size; void *extension_start; void *error; } error_destroy_args;
typedef struct { size_t struct_size; void *extension_start; void *error; const char *message; size_t message_size; } error_message_args;
typedef struct { size_t struct_size; void *extension_start; char *code; size_t code_size; const char *format; size_t format_size; } program;
typedef struct { size_t struct_size; void *extension_start; void *executable; program *program; } optimized_program_args;
typedef struct {
	pjrt_head head;
	void *function[49];
} pjrt_table;
enum { ERROR_DESTROY = 0, ERROR_MESSAGE = 1, EXECUTABLE_OPTIMIZED_PROGRAM = 48 };

// pjrt_program fills in a program and returns XLA's message if that fails, for the
// caller to free.
static char *pjrt_program(const pjrt_table *api, void *executable, program *p) {
	optimized_program_args args = { sizeof args, NULL, executable, p };
	void *error = ((void *(*)(optimized_program_args *))api->function[EXECUTABLE_OPTIMIZED_PROGRAM])(&args);
	if (!error) return NULL;
	error_message_args said = { sizeof said, NULL, error, NULL, 0 };
	((void (*)(error_message_args *))api->function[ERROR_MESSAGE])(&said);
	char *message = malloc(said.message_size + 1);
	if (!message) abort();
	for (size_t i = 0; i < said.message_size; i++) message[i] = said.message[i];
	message[said.message_size] = 0;
	error_destroy_args done = { sizeof done, NULL, error };
	((void (*)(error_destroy_args *))api->function[ERROR_DESTROY])(&done);
	return message;
}

// optimized_program asks twice: for the size, and for the program.
static char *optimized_program(const char *path, void *executable, program *p) {
	const char *problem_found = NULL;
	const pjrt_table *api = pjrt_api(path, &problem_found);
	if (!api || api->head.struct_size < sizeof *api) return strdup("its table of functions is too short");
	p->struct_size = sizeof *p;
	char *problem = pjrt_program(api, executable, p);
	if (problem) return problem;
	if (!(p->code = malloc(p->code_size))) return strdup("it is too large");
	return pjrt_program(api, executable, p);
}
*/
import "C"

import (
	"bytes"
	"fmt"
	"unsafe"
)

// OptimizedProgram returns what XLA made of a program when it compiled it, and the
// format that it is written in. executable is a PJRT_Executable* of a plugin that
// Load has loaded.
func OptimizedProgram(p Plugin, executable unsafe.Pointer) (code []byte, format string, err error) {
	path := C.CString(p.Path)
	defer C.free(unsafe.Pointer(path))
	got := (*C.program)(C.calloc(1, C.sizeof_program)) // XLA writes to it: not in Go's memory
	defer C.free(unsafe.Pointer(got))
	problem := C.optimized_program(path, executable, got)
	defer C.free(unsafe.Pointer(got.code))
	if problem != nil {
		defer C.free(unsafe.Pointer(problem))
		return nil, "", fmt.Errorf("plugin %q does not give its optimized program: %s", p.Path, C.GoString(problem))
	}
	return bytes.Clone(unsafe.Slice((*byte)(unsafe.Pointer(got.code)), got.code_size)),
		C.GoStringN(got.format, C.int(got.format_size)), nil
}
