// What a collective does with the devices' arrays, once all are there.

// An array is seen as outer×inner blocks of run elements, or, where each device takes a piece, as that many for each piece.
// Block (o, i) of device d's result comes from block (o, i) of the piece for d in the arrays of all devices s: their
// reduction, or copies of each. An all-reduce, and an all-to-all with each block in the same place, may have the operand's
// memory for the result. from and to have the distances, in blocks, of neighbours along o, i and the device d or s.
typedef struct {
	int64_t call, reduce, outer, inner;
	struct { int64_t o, i, device; } from, to;
	int64_t first;          // the number of the program's first device
	int64_t groups, ranks;
	const int64_t *devices; // (groups·ranks), counted from the first
	const int64_t *senders; // (ranks), for a permute: whose array a rank receives, or −1; else NULL
} plan;

enum { COPY, SUM, PRODUCT, MAX, MIN };

static int read_plan(const foreign_array *x, plan *p) {
	enum { FIXED = sizeof(plan) / sizeof(int64_t) - 2 };
	if (x->type != FOREIGN_S64 || x->rank != 1 || x->dims[0] < FIXED) return 0;
	const int64_t *numbers = x->data;
	memcpy(p, numbers, FIXED * sizeof *numbers);
	int64_t devices = p->groups * p->ranks, left = x->dims[0] - FIXED - devices;
	p->devices = numbers + FIXED;
	p->senders = left ? p->devices + devices : NULL;
	return p->groups > 0 && p->ranks > 0 && p->outer > 0 && p->inner > 0 && (left == 0 || left == p->ranks);
}

static int64_t size_of(int type) {
	switch (type) {
	case FOREIGN_S8: case FOREIGN_U8: return 1;
	case FOREIGN_S16: case FOREIGN_U16: case FOREIGN_F16: case FOREIGN_BF16: return 2;
	case FOREIGN_S32: case FOREIGN_U32: case FOREIGN_F32: return 4;
	case FOREIGN_S64: case FOREIGN_U64: case FOREIGN_F64: return 8;
	}
	return 0;
}

// run_of returns the elements of a block.
static int64_t run_of(const plan *p, int64_t operand) {
	return operand / (p->outer * p->inner * (p->from.device ? p->ranks : 1));
}

static int fits(const plan *p, int type, const foreign_array *x, const foreign_array *y) {
	int64_t operand = foreign_elements(x), blocks = p->outer * p->inner;
	return x->type == type && y->type == type && size_of(type) && operand == run_of(p, operand) * blocks *
		(p->from.device ? p->ranks : 1) && foreign_elements(y) == run_of(p, operand) * blocks * (p->to.device ? p->ranks : 1);
}

enum { CHUNK = 16 << 10 }; // bytes that are reduced or copied at a time: with the sum, in the first-level cache

// REDUCE defines a function that adds n elements to those in sum, and so on: integers in an unsigned type, which wraps around,
// half types in float.
#define REDUCE(name, of, to, wraps, read) \
	static void name(int64_t how, void *sum, const void *x, int64_t n) { \
		to *restrict a = sum; \
		const of *restrict b = x; \
		switch (how) { \
		case COPY: for (int64_t i = 0; i < n; i++) a[i] = read(b[i]); break; \
		case SUM: for (int64_t i = 0; i < n; i++) a[i] = (wraps)a[i] + (wraps)read(b[i]); break; \
		case PRODUCT: for (int64_t i = 0; i < n; i++) a[i] = (wraps)a[i] * (wraps)read(b[i]); break; \
		case MAX: for (int64_t i = 0; i < n; i++) { to v = read(b[i]); a[i] = a[i] > v || a[i] != a[i] ? a[i] : v; } break; \
		case MIN: for (int64_t i = 0; i < n; i++) { to v = read(b[i]); a[i] = a[i] < v || a[i] != a[i] ? a[i] : v; } break; \
		} \
	}
REDUCE(reduce_s8, int8_t, int8_t, uint32_t, )
REDUCE(reduce_s16, int16_t, int16_t, uint32_t, )
REDUCE(reduce_s32, int32_t, int32_t, uint32_t, )
REDUCE(reduce_s64, int64_t, int64_t, uint64_t, )
REDUCE(reduce_u8, uint8_t, uint8_t, uint32_t, )
REDUCE(reduce_u16, uint16_t, uint16_t, uint32_t, )
REDUCE(reduce_u32, uint32_t, uint32_t, uint32_t, )
REDUCE(reduce_u64, uint64_t, uint64_t, uint64_t, )
REDUCE(reduce_f16, uint16_t, float, float, from_f16)
REDUCE(reduce_bf16, uint16_t, float, float, from_bf16)
REDUCE(reduce_f32, float, float, float, )
REDUCE(reduce_f64, double, double, double, )

static void (*reducer(int type))(int64_t, void *, const void *, int64_t) {
	switch (type) {
	case FOREIGN_S8: return reduce_s8;
	case FOREIGN_S16: return reduce_s16;
	case FOREIGN_S32: return reduce_s32;
	case FOREIGN_S64: return reduce_s64;
	case FOREIGN_U8: return reduce_u8;
	case FOREIGN_U16: return reduce_u16;
	case FOREIGN_U32: return reduce_u32;
	case FOREIGN_U64: return reduce_u64;
	case FOREIGN_F16: return reduce_f16;
	case FOREIGN_BF16: return reduce_bf16;
	case FOREIGN_F32: return reduce_f32;
	case FOREIGN_F64: return reduce_f64;
	}
	return NULL;
}

typedef struct {
	const plan *p;
	void **in, **out; // by rank and array
	const int64_t *runs; // by array
	int64_t arrays, size, all, parts;
	int type, past; // whether results go past the caches, which they are too large for
} moving;

// put copies bytes of a result.
static void put(const moving *w, char *to, const char *from, int64_t bytes) {
#ifdef __SSE2__
	if (w->past && !((uintptr_t)to % 16)) {
		int64_t whole = bytes & -16;
		for (int64_t i = 0; i < whole; i += 16) _mm_stream_si128((__m128i *)(to + i), _mm_loadu_si128((const __m128i *)(from + i)));
		to += whole, from += whole, bytes -= whole;
	}
#endif
	memcpy(to, from, bytes);
}

// reduce_to sums n elements of all ranks' arrays from a place that depends on the result's rank d, and puts the sum into
// the results of ranks d to end.
static void reduce_to(const moving *w, int64_t array, int64_t from, int64_t to, int64_t n, int64_t d, int64_t end, char *sum) {
	for (int64_t s = 0; s < w->p->ranks; s++)
		reducer(w->type)(s ? w->p->reduce : COPY, sum, (const char *)w->in[s * w->arrays + array] + from * w->size, n);
	if (w->type == FOREIGN_F16)
		for (int64_t i = 0; i < n; i++) ((uint16_t *)sum)[i] = to_f16(((float *)sum)[i]);
	if (w->type == FOREIGN_BF16)
		for (int64_t i = 0; i < n; i++) ((uint16_t *)sum)[i] = to_bf16(((float *)sum)[i]);
	for (; d < end; d++) put(w, (char *)w->out[d * w->arrays + array] + to * w->size, sum, n * w->size);
}

// swap exchanges n elements of blocks between all pairs of ranks, of an array that is operand and result.
static void swap(const moving *w, int64_t array, int64_t at, int64_t n, char *other) {
	const int64_t run = w->runs[array], bytes = n * w->size;
	for (int64_t d = 1; d < w->p->ranks; d++)
		for (int64_t s = 0; s < d; s++) {
			char *x = (char *)w->out[s * w->arrays + array] + (at + d * run) * w->size;
			char *y = (char *)w->out[d * w->arrays + array] + (at + s * run) * w->size;
			memcpy(other, x, bytes);
			put(w, x, y, bytes);
			put(w, y, other, bytes);
		}
}

// one moves n elements of a block, from place `start` on.
static void one(const moving *w, int64_t array, int64_t o, int64_t i, int64_t start, int64_t n, char *sum) {
	const plan *p = w->p;
	const int64_t run = w->runs[array];
	int64_t from = (o * p->from.o + i * p->from.i) * run + start, to = (o * p->to.o + i * p->to.i) * run + start;
	if (p->reduce && !p->from.device) {
		reduce_to(w, array, from, to, n, 0, p->ranks, sum);
		return;
	}
	if (w->in[array] == w->out[array]) {
		swap(w, array, from, n, sum);
		return;
	}
	for (int64_t s = 0; s < (p->reduce ? 1 : p->ranks); s++) // its data stays in the cache while all take it
		for (int64_t d = 0; d < p->ranks; d++) {
			int64_t of = from + d * p->from.device * run, at = to + s * p->to.device * run;
			if (p->reduce) reduce_to(w, array, of, at, n, d, d + 1, sum);
			else if (!p->senders || p->senders[d] == s)
				put(w, (char *)w->out[d * w->arrays + array] + at * w->size,
					(const char *)w->in[s * w->arrays + array] + of * w->size, n * w->size);
			else if (s == 0 && p->senders[d] < 0)
				memset((char *)w->out[d * w->arrays + array] + at * w->size, 0, n * w->size);
		}
}

// part moves one of several equal shares of all chunks.
static void part(void *of, int64_t number, void *scratch) {
	const moving *w = of;
	int64_t chunk = CHUNK / w->size, unit = w->all * number / w->parts, end = w->all * (number + 1) / w->parts, before = 0;
	for (int64_t array = 0; array < w->arrays; array++) {
		int64_t pieces = (w->runs[array] + chunk - 1) / chunk, units = w->p->outer * w->p->inner * pieces;
		for (; unit < end && unit < before + units; unit++) {
			int64_t block = (unit - before) / pieces, start = (unit - before) % pieces * chunk;
			int64_t left = w->runs[array] - start;
			one(w, array, block / w->p->inner, block % w->p->inner, start, left < chunk ? left : chunk, scratch);
		}
		before += units;
	}
#ifdef __SSE2__
	_mm_sfence();
#endif
}

// move does the work of a collective for all its devices.
static foreign_error *move(foreign_frame *f, const plan *p, void **in, void **out) {
	enum { PAST = 8 << 20, LEAST = 128 << 10 }; // bytes of all results, of a part
	int64_t runs[f->out.size], bytes = 0;
	moving w = {p, in, out, runs, f->out.size, size_of(foreign_in(f, 0)->type), 0, 0, foreign_in(f, 0)->type, 0};
	for (int64_t i = 0; i < w.arrays; i++) {
		runs[i] = run_of(p, foreign_elements(foreign_in(f, i)));
		w.all += p->outer * p->inner * ((runs[i] * w.size + CHUNK - 1) / CHUNK);
		bytes += foreign_elements(foreign_out(f, i)) * w.size * p->ranks;
	}
	w.past = bytes >= PAST;
	w.parts = bytes / LEAST + 1 < w.all ? bytes / LEAST + 1 : w.all;
	return foreign_for(f, w.parts, 2 * CHUNK, part, &w);
}

// With uneven parts, operands are rows and int32 counts, as many for each rank. The first rows go to rank 0, as many as its
// counts add up to, the next to rank 1, and so on. A result has the rows for its rank in the senders' order, then zeros.

static int fits_uneven(const plan *p, const foreign_array *x, const foreign_array *counts, const foreign_array *y) {
	int same = x->type == y->type && size_of(x->type) && x->rank == y->rank && x->rank > 0;
	for (int64_t i = 1; same && i < x->rank; i++) same = x->dims[i] == y->dims[i];
	return same && counts->type == FOREIGN_S32 && foreign_elements(counts) % p->ranks == 0;
}

typedef struct {
	moving w;
	const int64_t *from;  // (senders, receivers): where the rows for a receiver begin
	const int64_t *to;    // (receivers, senders + 1): where the rows from a sender begin; the last: where all end
	int64_t bytes, rows;  // of a row, in a result
	int64_t shares;       // parts for each result
} scattering;

// share fills one of several equal parts of a result.
static void share(void *of, int64_t number, void *unused) {
	(void)unused;
	const scattering *u = of;
	const int64_t ranks = u->w.p->ranks, d = number / u->shares, part = number % u->shares, *to = u->to + d * (ranks + 1);
	int64_t at = u->rows * part / u->shares, end = u->rows * (part + 1) / u->shares;
	char *y = u->w.out[d * u->w.arrays];
	for (int64_t s = 0; s < ranks; s++) {
		int64_t till = to[s + 1] < end ? to[s + 1] : end;
		if (at >= till) continue;
		const char *x = u->w.in[s * u->w.arrays];
		put(&u->w, y + at * u->bytes, x + (u->from[s * ranks + d] + at - to[s]) * u->bytes, (till - at) * u->bytes);
		at = till;
	}
	memset(y + at * u->bytes, 0, (end - at) * u->bytes);
#ifdef __SSE2__
	_mm_sfence();
#endif
}

// move_uneven is move for uneven parts. It writes the problem if counts are wrong.
static foreign_error *move_uneven(foreign_frame *f, const plan *p, void **in, void **out, char *problem, size_t room) {
	enum { PAST = 8 << 20, LEAST = 128 << 10 }; // as in move
	const foreign_array *x = foreign_in(f, 0), *y = foreign_out(f, 0);
	int64_t ranks = p->ranks, each = foreign_elements(foreign_in(f, 1)) / ranks, arrays = f->in.size - 1;
	int64_t from[ranks * ranks], to[ranks * (ranks + 1)], bytes = size_of(x->type);
	for (int64_t i = 1; i < x->rank; i++) bytes *= x->dims[i];
	for (int64_t d = 0; d < ranks; d++) to[d * (ranks + 1)] = 0;
	for (int64_t s = 0; s < ranks; s++) {
		const int32_t *counts = in[s * arrays + 1];
		int64_t sent = 0;
		for (int64_t d = 0; d < ranks; d++) {
			int64_t *after = &to[d * (ranks + 1) + s + 1];
			from[s * ranks + d] = sent;
			for (int64_t g = 0; g < each; g++) {
				int64_t count = counts[d * each + g];
				if (count < 0) {
					snprintf(problem, room, "all-to-all-v: rank %lld counts %lld rows for rank %lld: counts must be at "
						"least 0", (long long)s, (long long)count, (long long)d);
					return foreign_fail(f, problem);
				}
				sent += count;
			}
			*after = after[-1] + sent - from[s * ranks + d];
		}
		if (sent > x->dims[0]) {
			snprintf(problem, room, "all-to-all-v: the counts of rank %lld are of %lld rows, and it has %lld",
				(long long)s, (long long)sent, (long long)x->dims[0]);
			return foreign_fail(f, problem);
		}
	}
	for (int64_t d = 0; d < ranks; d++)
		if (to[d * (ranks + 1) + ranks] > y->dims[0]) {
			snprintf(problem, room, "all-to-all-v: rank %lld is sent %lld rows, and its result has only %lld: give "
				"AllToAllV enough for the worst case", (long long)d, (long long)to[d * (ranks + 1) + ranks],
				(long long)y->dims[0]);
			return foreign_fail(f, problem);
		}
	int64_t result = y->dims[0] * bytes, shares = result / LEAST + 1;
	scattering u = {{.p = p, .in = in, .out = out, .arrays = arrays, .past = result * ranks >= PAST}, from, to, bytes,
		y->dims[0], shares};
	return foreign_for(f, ranks * shares, 0, share, &u);
}
