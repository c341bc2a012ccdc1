// What a C function needs to be called from an XLA program, on a CPU or a GPU: the part of XLA's foreign-function
// interface (xla/ffi/api/c_api.h, whose layout is stable: fields are only ever appended) that reads arrays, reports an
// error, shares work among XLA's threads, and has the stream of a GPU. Everything here is static, so that a kernel needs
// this file alone.
//
//	static foreign_error *my_kernel(foreign_frame *f) {
//		foreign_error *wrong = foreign_count(f, "mine", 1, 1);
//		if (!wrong) wrong = foreign_expect(f, "mine: x", foreign_in(f, 0), FOREIGN_F32, 1, (int64_t[]){FOREIGN_ANY});
//		if (wrong) return wrong;
//		… foreign_in(f, 0)->data … return NULL;
//	}
//	void *my_handler(foreign_frame *f) { return foreign_handle(f, my_kernel); }
#ifndef SHARDBOOK_FOREIGN_H
#define SHARDBOOK_FOREIGN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

// XLA's numbers of element types.
enum {
	FOREIGN_S8 = 2, FOREIGN_S16, FOREIGN_S32, FOREIGN_S64, FOREIGN_U8, FOREIGN_U16, FOREIGN_U32, FOREIGN_U64,
	FOREIGN_F16, FOREIGN_F32, FOREIGN_F64, FOREIGN_BF16 = 16
};

typedef struct foreign_error foreign_error;
typedef struct foreign_future foreign_future;
typedef struct foreign_extension {
	size_t struct_size;
	int type;
	struct foreign_extension *next;
} foreign_extension;
typedef struct {
	size_t struct_size;
	foreign_extension *extension;
	int major, minor;
} foreign_version;
typedef struct {
	foreign_extension base;
	struct { size_t struct_size; foreign_version version; } *about;
} foreign_metadata;
enum { FOREIGN_METADATA = 1, FOREIGN_EXECUTE = 3, FOREIGN_BUFFER = 1 };

// An array in row-major order.
typedef struct {
	size_t struct_size;
	foreign_extension *extension;
	int type;
	void *data;
	int64_t rank;
	int64_t *dims;
} foreign_array;

typedef struct {
	size_t struct_size;
	foreign_extension *extension;
	int64_t size;
	int *types;
	foreign_array **at;
} foreign_arrays;

typedef struct { size_t struct_size; foreign_extension *extension; const char *message; int code; } foreign_error_args;
typedef struct { size_t struct_size; foreign_extension *extension; foreign_error *error; } foreign_destroy_args;
typedef struct { size_t struct_size; foreign_extension *extension; void *context; void *stream; } foreign_stream_args;
typedef struct { size_t struct_size; foreign_extension *extension; void *context; void (*task)(void *); void *of; } foreign_schedule_args;
typedef struct { size_t struct_size; foreign_extension *extension; void *context; int64_t *threads; } foreign_threads_args;

typedef struct { size_t struct_size; foreign_extension *extension; foreign_future *future; } foreign_future_args;
typedef struct { size_t struct_size; foreign_extension *extension; foreign_future *future; foreign_error *error; } foreign_failure_args;
typedef struct { size_t struct_size; foreign_extension *extension; void *context; int64_t run; } foreign_run_args;
typedef struct { size_t struct_size; foreign_extension *extension; void *context; int32_t device; } foreign_device_args;

typedef struct {
	size_t struct_size;
	foreign_extension *extension;
	foreign_version version;
	void *internal;
	foreign_error *(*error)(foreign_error_args *);
	void *message;
	void (*destroy)(foreign_destroy_args *);
	void *register_handler;
	foreign_error *(*stream)(foreign_stream_args *);
	void *unused[6];
	foreign_error *(*schedule)(foreign_schedule_args *);
	foreign_error *(*threads)(foreign_threads_args *);
	foreign_error *(*future)(foreign_future_args *);
	foreign_error *(*available)(foreign_future_args *);
	foreign_error *(*failure)(foreign_failure_args *);
	foreign_error *(*run)(foreign_run_args *);
	foreign_error *(*device)(foreign_device_args *);
} foreign_api;

// One call of a kernel.
typedef struct {
	size_t struct_size;
	foreign_extension *extension;
	const foreign_api *api;
	void *context;
	int stage;
	foreign_arrays in, out;
	struct { size_t struct_size; foreign_extension *extension; int64_t size; void *types, *names, *at; } attributes;
	foreign_future *future; // set by a kernel whose results will be there later
} foreign_frame;

enum { FOREIGN_FRAME = offsetof(foreign_frame, future) }; // XLA does not count the future

static inline foreign_array *foreign_in(foreign_frame *f, int i) { return f->in.at[i]; }
static inline foreign_array *foreign_out(foreign_frame *f, int i) { return f->out.at[i]; }

static inline int64_t foreign_elements(const foreign_array *x) {
	int64_t n = 1;
	for (int64_t i = 0; i < x->rank; i++) n *= x->dims[i];
	return n;
}

// foreign_fail returns an error for a kernel to return.
static inline foreign_error *foreign_fail(foreign_frame *f, const char *message) {
	foreign_error_args args = {sizeof args, NULL, message, 13 /* internal */};
	return f->api->error(&args);
}

// foreign_sound reports whether the call's structs are at least as long as they are here, those that others lie behind
// exactly as long, and whether all operands and results are arrays.
static inline int foreign_sound(const foreign_frame *f) {
	if (f->struct_size < FOREIGN_FRAME) return 0;
	for (const foreign_arrays *a = &f->in; a <= &f->out; a++) {
		if (a->struct_size != sizeof *a) return 0;
		for (int64_t i = 0; i < a->size; i++)
			if (a->types[i] != FOREIGN_BUFFER || a->at[i]->struct_size < sizeof(foreign_array)) return 0;
	}
	return 1;
}

// foreign_handle answers XLA's question for the version of the interface, and runs the kernel when it is time.
static inline void *foreign_handle(foreign_frame *f, foreign_error *(*kernel)(foreign_frame *)) {
	for (foreign_extension *e = f->extension; e; e = e->next)
		if (e->type == FOREIGN_METADATA) {
			foreign_version *v = &((foreign_metadata *)e)->about->version;
			int known = f->struct_size >= FOREIGN_FRAME && f->api->struct_size >= sizeof *f->api && f->api->version.major == 0;
			v->major = known ? 0 : -1; // what this file is written for: XLA refuses the kernel if it has another
			v->minor = f->api->version.minor;
			return NULL;
		}
	if (f->stage != FOREIGN_EXECUTE) return NULL;
	if (!foreign_sound(f))
		return foreign_fail(f, "XLA calls the kernel with structs of another layout than foreign.h has: use the pinned plugin");
	return kernel(f);
}

enum { FOREIGN_ANY = -1 }; // a size that may be any

// foreign_count returns an error, which begins with the kernel's name, unless the call has so many operands and
// results.
static inline foreign_error *foreign_count(foreign_frame *f, const char *kernel, int operands, int results) {
	char message[200];
	if (f->in.size == operands && f->out.size == results) return NULL;
	snprintf(message, sizeof message, "%s: the call has %lld operands and %lld results: it takes %d and gives %d", kernel,
		(long long)f->in.size, (long long)f->out.size, operands, results);
	return foreign_fail(f, message);
}

static inline const char *foreign_type_name(int type, char *number, size_t room) {
	switch (type) {
	case FOREIGN_F16: return "float16";
	case FOREIGN_F32: return "float32";
	case FOREIGN_BF16: return "bfloat16";
	case FOREIGN_S32: return "int32";
	}
	snprintf(number, room, "XLA's type %d", type);
	return number;
}

// foreign_shape writes a type and sizes as text.
static inline void foreign_shape(char *to, size_t room, int type, int64_t rank, const int64_t *dims) {
	char number[32];
	size_t at = snprintf(to, room, "%s[", foreign_type_name(type, number, sizeof number));
	for (int64_t i = 0; i < rank && at < room; i++)
		if (dims[i] == FOREIGN_ANY) at += snprintf(to + at, room - at, "%sany", i ? ", " : "");
		else at += snprintf(to + at, room - at, "%s%lld", i ? ", " : "", (long long)dims[i]);
	if (at < room) snprintf(to + at, room - at, "]");
}

// foreign_expect returns an error, which begins with the array's name, unless it has this type and these sizes.
static inline foreign_error *foreign_expect(foreign_frame *f, const char *name, const foreign_array *x, int type,
		int64_t rank, const int64_t *dims) {
	int same = x->type == type && x->rank == rank;
	for (int64_t i = 0; same && i < rank; i++) same = dims[i] == FOREIGN_ANY || x->dims[i] == dims[i];
	if (same) return NULL;
	char got[200], want[200], message[500];
	foreign_shape(got, sizeof got, x->type, x->rank, x->dims);
	foreign_shape(want, sizeof want, type, rank, dims);
	snprintf(message, sizeof message, "%s is %s, want %s", name, got, want);
	return foreign_fail(f, message);
}

// foreign_failed returns whether there is an error, which it frees.
static inline int foreign_failed(foreign_frame *f, foreign_error *error) {
	foreign_destroy_args args = {sizeof args, NULL, error};
	if (error) f->api->destroy(&args);
	return error != NULL;
}

// foreign_threads returns the number of XLA's threads.
static inline int64_t foreign_threads(foreign_frame *f) {
	int64_t threads = 1;
	foreign_threads_args ask = {sizeof ask, NULL, f->context, &threads};
	return foreign_failed(f, f->api->threads(&ask)) ? 1 : threads;
}

// Work of n parts that threads take one after the other. Whoever lets go of it last frees it: a thread of XLA's may come
// to it when all is done.
typedef struct {
	void (*part)(void *of, int64_t i, void *scratch);
	void *of;
	int64_t n;
	size_t scratch;
	atomic_llong next;
	atomic_int holders, failed;
	pthread_mutex_t lock;
	pthread_cond_t all;
	int64_t done;
} foreign_work;

static inline void foreign_release(foreign_work *w) {
	if (atomic_fetch_sub(&w->holders, 1) > 1) return;
	pthread_mutex_destroy(&w->lock);
	pthread_cond_destroy(&w->all);
	free(w);
}

// foreign_take works until no part is left.
static inline void foreign_take(foreign_work *w) {
	int64_t did = 0, i;
	void *scratch = NULL;
	while ((i = atomic_fetch_add(&w->next, 1)) < w->n) {
		if (!scratch && w->scratch && posix_memalign(&scratch, 64, w->scratch)) scratch = NULL;
		if (w->scratch && !scratch) atomic_store(&w->failed, 1);
		else w->part(w->of, i, scratch);
		did++;
	}
	free(scratch);
	if (!did) return;
	pthread_mutex_lock(&w->lock);
	if ((w->done += did) == w->n) pthread_cond_signal(&w->all);
	pthread_mutex_unlock(&w->lock);
}

static inline void foreign_help(void *work) {
	foreign_take(work);
	foreign_release(work);
}

// foreign_for calls part(of, i, scratch) for every i below n, on this thread and on those of XLA's pool that are free;
// scratch is memory of that many bytes, aligned to 64, a thread. This thread takes part until nothing is left, so that the
// work gets done even if all others are busy, as they are when other devices' programs call kernels too.
static inline foreign_error *foreign_for(foreign_frame *f, int64_t n, size_t scratch, void (*part)(void *, int64_t, void *), void *of) {
	foreign_work *w = calloc(1, sizeof *w);
	if (!w) return foreign_fail(f, "out of memory");
	w->part = part, w->of = of, w->n = n, w->scratch = scratch;
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->all, NULL);
	int64_t threads = foreign_threads(f), helpers = (threads < n ? threads : n) - 1;
	atomic_store(&w->holders, 1 + (helpers > 0 ? helpers : 0));
	for (int64_t i = 0; i < helpers; i++) {
		foreign_schedule_args more = {sizeof more, NULL, f->context, foreign_help, w};
		if (foreign_failed(f, f->api->schedule(&more))) foreign_release(w);
	}
	foreign_take(w);
	pthread_mutex_lock(&w->lock);
	while (w->done < n) pthread_cond_wait(&w->all, &w->lock);
	pthread_mutex_unlock(&w->lock);
	int failed = atomic_load(&w->failed);
	foreign_release(w);
	return failed ? foreign_fail(f, "out of memory") : NULL;
}

#endif
