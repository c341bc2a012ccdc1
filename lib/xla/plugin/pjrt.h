// The way to a plugin's table of functions, and the head of the table, which never changes: the rest may not be touched before
// the version is known (XLA's pjrt_c_api.h).
#include <dlfcn.h>
#include <stddef.h>

typedef struct pjrt_extension { size_t struct_size; int type; struct pjrt_extension *next; } pjrt_extension;
typedef struct {
	size_t struct_size;
	pjrt_extension *extension;
	struct { size_t struct_size; void *extension; int major, minor; } version;
} pjrt_head;

// pjrt_api maps the library, or finds it again if it is, and returns its table; or NULL, and what is wrong.
static inline const void *pjrt_api(const char *path, const char **problem) {
	void *lib = dlopen(path, RTLD_LAZY | RTLD_LOCAL); // it stays loaded: XLA does not survive being unloaded
	const void *(*get)(void) = lib ? (const void *(*)(void))dlsym(lib, "GetPjrtApi") : NULL;
	const void *api = get ? get() : NULL;
	if (!api) *problem = get ? "GetPjrtApi returned NULL" : dlerror();
	return api;
}
