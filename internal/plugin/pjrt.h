// What this package needs of PJRT's C API. Before a plugin's version is known, nothing of its table may be read but the
// head, up to the version.
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "pjrt_c_api.h" // XLA's own (Apache License 2.0), as go-xla has it

// pjrt_api maps the library, or finds it again if it is, and returns its table; or NULL, and what is wrong.
static inline const PJRT_Api *pjrt_api(const char *path, const char **problem) {
	void *lib = dlopen(path, RTLD_LAZY | RTLD_LOCAL); // it stays loaded: XLA does not survive being unloaded
	const PJRT_Api *(*get)(void) = lib ? (const PJRT_Api *(*)(void))dlsym(lib, "GetPjrtApi") : NULL;
	const PJRT_Api *api = get ? get() : NULL;
	if (!api) *problem = get ? "GetPjrtApi returned NULL" : dlerror();
	return api;
}

// PJRT_HAS tells whether a plugin's table is long enough to have the function: new ones are added at its end.
#define PJRT_HAS(api, function) ((api)->struct_size > offsetof(PJRT_Api, function))

// pjrt_extension returns the plugin's extension of a type and at least a size, or NULL.
static inline void *pjrt_extension(const PJRT_Api *api, PJRT_Extension_Type type, size_t size) {
	for (PJRT_Extension_Base *e = api->extension_start; e; e = e->next)
		if (e->type == type && e->struct_size >= size) return e;
	return NULL;
}

// pjrt_failed destroys an error and returns its message, for the caller to free, or NULL where there is no error.
static inline char *pjrt_failed(const PJRT_Api *api, PJRT_Error *error) {
	if (!error) return NULL;
	PJRT_Error_Message_Args said = { PJRT_Error_Message_Args_STRUCT_SIZE, NULL, error };
	api->PJRT_Error_Message(&said);
	char *message = strndup(said.message, said.message_size);
	PJRT_Error_Destroy_Args done = { PJRT_Error_Destroy_Args_STRUCT_SIZE, NULL, error };
	api->PJRT_Error_Destroy(&done);
	return message ? message : strdup("");
}
