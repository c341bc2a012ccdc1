// What is needed of XLA's pjrt_c_api.h to keep compiled programs: arguments of its functions, whose layout never changes.
#include "pjrt.h"

typedef struct { size_t struct_size; void *extension_start; char *code; size_t code_size; const char *format; size_t format_size; } pjrt_code;
typedef struct {
	size_t struct_size;
	void *extension_start;
	void *client;
	const pjrt_code *program;
	const char *options;
	size_t options_size;
	void *executable; // out
} pjrt_compile_args;

// pjrt_compile_through returns a copy of a plugin's table of functions whose compiler is Go's compileThrough; NULL where the
// table is too short to load what was compiled before. It is never freed.
void *pjrt_compile_through(const void *table);

// pjrt_compile is the plugin's own compiler. It returns XLA's error.
void *pjrt_compile(const void *table, pjrt_compile_args *args);

// pjrt_serialize returns a loaded executable as bytes, for the caller to free; NULL where XLA cannot.
char *pjrt_serialize(const void *table, void *executable, size_t *size);

// pjrt_deserialize loads serialized bytes on a client's devices; NULL where XLA cannot.
void *pjrt_deserialize(const void *table, void *client, const void *bytes, size_t size);
