//go:build !resident

package plugin

/*
#include "pjrt.h"

// Of XLA's pjrt_c_api_profiler_extension.h and profiler_c_api.h, which go-xla does not have.
typedef struct { size_t struct_size; void *priv, *error; } profiler_error_args;
typedef struct { size_t struct_size; void *priv,
	*error; const char *message; size_t message_size; } profiler_message_args;
typedef struct { size_t struct_size; const char *options; size_t options_size; void *profiler; } profiler_create_args;
typedef struct { size_t struct_size; void *profiler; } profiler_args;
typedef void *profiler_step(profiler_args *);
typedef struct { size_t struct_size; void *profiler; char *buffer; size_t size; } profiler_data_args;
typedef struct {
	size_t struct_size;
	void *priv;
	void (*error_destroy)(profiler_error_args *);
	void (*error_message)(profiler_message_args *);
	void *error_code;
	void *(*create)(profiler_create_args *);
	profiler_step *destroy, *start, *stop;
	void *(*collect)(profiler_data_args *);
} profiler_api;
typedef struct { PJRT_Extension_Base base; const profiler_api *api; } profiler_extension;

// find_profiler returns NULL where the plugin has none.
static const profiler_api *find_profiler(const char *path) {
	const char *problem = NULL;
	const PJRT_Api *api = pjrt_api(path, &problem);
	profiler_extension *found = api ? pjrt_extension(api, PJRT_Extension_Type_Profiler, sizeof *found) : NULL;
	return found && found->api && found->api->struct_size >= sizeof *found->api ? found->api : NULL;
}

// failed returns an error's message, for the caller to free, or NULL where there is no error.
static char *failed(const profiler_api *api, void *error) {
	if (!error) return NULL;
	profiler_message_args said = { sizeof said, NULL, error, "", 0 };
	api->error_message(&said);
	char *message = strndup(said.message, said.message_size);
	profiler_error_args done = { sizeof done, NULL, error };
	api->error_destroy(&done);
	return message ? message : strdup("");
}

// profiler_do starts, stops or destroys a profiler.
static char *profiler_do(const profiler_api *api, profiler_step *step, void *profiler) {
	profiler_args args = { sizeof args, profiler };
	return failed(api, step(&args));
}

static char *profiler_start(const profiler_api *api, const char *options, size_t size, void **profiler) {
	profiler_create_args create = { sizeof create, options, size, NULL };
	char *problem = failed(api, api->create(&create));
	if (problem) return problem;
	*profiler = create.profiler;
	return profiler_do(api, api->start, *profiler);
}

// profiler_collect returns data that the profiler owns. By the header the caller provides memory in a second call; XLA
// instead returns its own memory in the first call, and the second writes nothing.
static char *profiler_collect(const profiler_api *api, void *profiler, char **own, const char **data, size_t *size) {
	profiler_data_args collect = { sizeof collect, profiler, NULL, 0 };
	char *problem = failed(api, api->collect(&collect));
	if (!problem && !collect.buffer && collect.size) {
		if (!(*own = collect.buffer = malloc(collect.size))) return strdup("it is too large");
		problem = failed(api, api->collect(&collect));
	}
	*data = collect.buffer;
	*size = collect.size;
	return problem;
}
*/
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"
)

// ErrNoProfiler is wrapped by the error of Record for a plugin without a profiler.
var ErrNoProfiler = errors.New("it has no profiler (XLA's for CPUs has none, that for CUDA has)")

// errRecording is wrapped by the error of Record when another recording is going on in the process.
var errRecording = errors.New("a recording is going on: one at a time")

// recording is locked while a profiler records: there is one XLA profiler per process, and it records everything in it.
var recording sync.Mutex

// recordOptions is a tensorflow.ProfileOptions (profiler_options.proto) with JAX's defaults: version = 1 (field 5),
// host_tracer_level = 2 (field 2), device_tracer_level = 1 (field 3).
const recordOptions = "\x28\x01\x10\x02\x18\x01"

// Record runs f while the plugin's profiler records all XLA activity of this process, and returns the recording: a
// serialized XSpace (xplane.proto). It returns f's error unchanged. The plugin must be loaded.
func Record(p Plugin, f func() error) (space []byte, err error) {
	path, options := C.CString(p.Path), C.CString(recordOptions)
	defer C.free(unsafe.Pointer(path))
	defer C.free(unsafe.Pointer(options))
	api := C.find_profiler(path)
	if api == nil {
		return nil, fmt.Errorf("plugin %q: %w", p.Path, ErrNoProfiler)
	}
	if !recording.TryLock() {
		return nil, fmt.Errorf("plugin %q: %w", p.Path, errRecording)
	}
	defer recording.Unlock()
	failed := func(problem *C.char) error {
		if problem == nil {
			return nil
		}
		defer C.free(unsafe.Pointer(problem))
		return fmt.Errorf("plugin %q cannot record: %s", p.Path, C.GoString(problem))
	}
	var profiler unsafe.Pointer
	err = failed(C.profiler_start(api, options, C.size_t(len(recordOptions)), &profiler))
	if profiler != nil {
		defer func() { _ = failed(C.profiler_do(api, api.destroy, profiler)) }()
	}
	if err != nil {
		return nil, err
	}
	stop := sync.OnceValue(func() error { return failed(C.profiler_do(api, api.stop, profiler)) })
	defer stop() // also if f panics
	if err := f(); err != nil {
		return nil, err
	}
	if err := stop(); err != nil {
		return nil, err
	}
	var own, data *C.char
	var size C.size_t
	defer func() { C.free(unsafe.Pointer(own)) }()
	if err := failed(C.profiler_collect(api, profiler, &own, &data, &size)); err != nil {
		return nil, err
	}
	return append([]byte{}, unsafe.Slice((*byte)(unsafe.Pointer(data)), size)...), nil
}
