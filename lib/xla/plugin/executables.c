#include <stdlib.h>
#include <string.h>

#include "_cgo_export.h"

typedef struct { size_t struct_size; void *extension_start; void *error; } error_destroy_args;
typedef struct { size_t struct_size; void *extension_start; void *executable; } destroy_args;
typedef struct { size_t struct_size; void *extension_start; void *loaded, *executable; } get_executable_args;
typedef struct {
	size_t struct_size;
	void *extension_start;
	void *executable;
	const char *bytes;
	size_t size;
	void *backing;
	void (*free_backing)(void *);
} serialize_args;
typedef struct {
	size_t struct_size;
	void *extension_start;
	void *client;
	const char *bytes;
	size_t size;
	void *loaded;
	const char *options;
	size_t options_size;
} deserialize_args;

// The numbers count the table's functions from 0; new ones are only added at its end.
enum { ERROR_DESTROY = 0, COMPILE = 20, EXECUTABLE_DESTROY = 40, SERIALIZE = 49, GET_EXECUTABLE = 51, DESERIALIZE = 56, NEEDED };
typedef void *(*function)(void *);
typedef struct { pjrt_head head; function at[]; } table;

// failed calls a function, and says whether it did not work.
static int failed(const void *of, int number, void *args) {
	const table *t = of;
	void *error = t->at[number](args);
	if (!error) return 0;
	error_destroy_args done = { sizeof done, NULL, error };
	t->at[ERROR_DESTROY](&done);
	return 1;
}

void *pjrt_compile_through(const void *of) {
	const table *t = of;
	if (t->head.struct_size < sizeof(table) + NEEDED * sizeof(function)) return NULL;
	table *copy = malloc(t->head.struct_size);
	if (!copy) return NULL;
	memcpy(copy, t, t->head.struct_size);
	copy->at[COMPILE] = (function)compileThrough;
	return copy;
}

void *pjrt_compile(const void *of, pjrt_compile_args *args) { return ((const table *)of)->at[COMPILE](args); }

char *pjrt_serialize(const void *of, void *loaded, size_t *size) {
	get_executable_args get = { sizeof get, NULL, loaded, NULL };
	if (failed(of, GET_EXECUTABLE, &get)) return NULL;
	serialize_args args = { sizeof args, NULL, get.executable };
	char *bytes = NULL;
	if (!failed(of, SERIALIZE, &args)) {
		if ((bytes = malloc(args.size))) memcpy(bytes, args.bytes, *size = args.size);
		args.free_backing(args.backing);
	}
	destroy_args done = { sizeof done, NULL, get.executable };
	failed(of, EXECUTABLE_DESTROY, &done);
	return bytes;
}

void *pjrt_deserialize(const void *of, void *client, const void *bytes, size_t size) {
	deserialize_args args = { sizeof args, NULL, client, bytes, size };
	return failed(of, DESERIALIZE, &args) ? NULL : args.loaded;
}
