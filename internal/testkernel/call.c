// Calls of any kernel, with operands and results where the caller has them.
#include <stdio.h>
#include <string.h>

#include "../../lib/xla/foreign/foreign.h"

static _Thread_local char said[300];

static foreign_error *say(foreign_error_args *args) {
	snprintf(said, sizeof said, "%s", args->message);
	return (foreign_error *)said;
}

static void destroy(foreign_destroy_args *args) { (void)args; }

static foreign_error *three(foreign_threads_args *args) {
	*args->threads = 3;
	return NULL;
}

static foreign_error *at_once(foreign_schedule_args *args) {
	args->task(args->of);
	return NULL;
}

static foreign_error *first_run(foreign_run_args *args) {
	args->run = 1;
	return NULL;
}

static foreign_error *device(foreign_device_args *args) {
	args->device = *(int *)args->context;
	return NULL;
}

enum { STREAM = 0x5eed }; // an address that nothing reads

static foreign_error *stream(foreign_stream_args *args) {
	args->stream = (void *)(uintptr_t)STREAM;
	return NULL;
}

// Handlers for GPUs that XLA calls on the CPU, with a stream.
enum { MOST_ON_CPU = 8 };
static void *(*for_gpu[MOST_ON_CPU])(foreign_frame *);

static void *on_cpu(int i, foreign_frame *f) {
	foreign_api api = *f->api;
	foreign_frame with = *f;
	api.stream = stream;
	with.api = &api;
	return for_gpu[i](&with);
}

#define ON_CPU(i) static void *on_cpu_##i(foreign_frame *f) { return on_cpu(i, f); }
ON_CPU(0) ON_CPU(1) ON_CPU(2) ON_CPU(3) ON_CPU(4) ON_CPU(5) ON_CPU(6) ON_CPU(7)

// shardbook_test_on_cpu returns a handler that calls another with a stream; NULL after eight.
void *shardbook_test_on_cpu(void *handler) {
	static void *const all[] = {on_cpu_0, on_cpu_1, on_cpu_2, on_cpu_3, on_cpu_4, on_cpu_5, on_cpu_6, on_cpu_7};
	static int made;
	if (made == MOST_ON_CPU) return NULL;
	for_gpu[made] = (void *(*)(foreign_frame *))handler;
	return all[made++];
}

// A future is memory that is freed when it is available.
static foreign_error *future(foreign_future_args *args) {
	args->future = malloc(1);
	return NULL;
}

static foreign_error *available(foreign_future_args *args) {
	free(args->future);
	return NULL;
}

// shardbook_test_call calls a kernel, on a device, whose arrays have up to four sizes. It returns the kernel's error, or "".
const char *shardbook_test_call(void *handler, int on, int operands, int results, const int *types, void **data,
		const int64_t *ranks, int64_t *dims) {
	enum { MOST = 8 };
	foreign_array arrays[MOST];
	foreign_array *at[MOST];
	int buffers[MOST];
	for (int i = 0; i < operands + results; i++) {
		arrays[i] = (foreign_array){sizeof *arrays, NULL, types[i], data[i], ranks[i], dims + 4 * i};
		at[i] = arrays + i;
		buffers[i] = FOREIGN_BUFFER;
	}
	static const foreign_api api = { // static, since kernels may use it after the call
		.struct_size = sizeof api, .error = say, .destroy = (void (*)(foreign_destroy_args *))destroy, .threads = three,
		.schedule = at_once, .run = first_run, .device = device, .stream = stream, .future = future, .available = available};
	foreign_frame f = {sizeof f, NULL, &api, &on, FOREIGN_EXECUTE,
		{sizeof f.in, NULL, operands, buffers, at}, {sizeof f.out, NULL, results, buffers, at + operands}};
	said[0] = 0;
	((void *(*)(foreign_frame *))handler)(&f);
	return said;
}
