//go:build !resident

// Attention on a CPU, called from XLA's programs. The loops are in tile.h. This file has what does not depend on the
// instruction set: the queries and keys of a tile, and masks.
#include <math.h>
#include <string.h>

#include "../../../../internal/vector/array.h"
#include "../../../../internal/vector/turn.h"

enum { QUERIES = 128, KEYS = 64 }; // of a tile; its scores take 32 KiB
enum { PAD = 16 };                 // floats between rows, so that a column does not map to few cache lines
enum { ROW = QUERIES + PAD };      // floats from one row of queries to the next
enum { STRIP = 16 };               // elements that are transposed at a time
enum { NONE, SOME, EVERY };        // the part of a tile that the mask allows

// attention is one call. Arrays are row-major: q (batch, queries, heads, d), k (batch, keys, key_heads, d),
// v (batch, keys, key_heads, e); statistics are (batch, queries, heads).
typedef struct {
	int64_t batch, queries, keys, heads, key_heads, d, e;
	array q, k, v;
	const int32_t *query_position; // NULL: the positions of the last keys
	const int32_t *key_position;   // NULL: 0, 1, 2, …
	const int32_t *query_segment, *key_segment; // (batch, queries) and (batch, keys), or NULL
	int causal;
	int32_t window; // 0: none
	float scale;

	array out;
	float *largest, *sum; // of a query's scores; of e^(score - largest)

	array output, dout; // of the backward pass; may be float32 where q is not
	array dq, dk, dv;
} attention;

// padded rounds a row's width up to a multiple of every instruction set's COLUMNS. PAD is added to that.
static int64_t padded(int64_t n) { return (n + 31) / 32 * 32; }

// queries are the n queries of a tile. The first is row `row` of (batch, queries, heads). Lanes beyond n repeat the last
// query's position and segment.
typedef struct {
	int64_t n, row, heads;
	int32_t position[QUERIES], segment[QUERIES];
	int32_t position_min, position_max, segment_min, segment_max;
} queries;

// keys are the n keys of a tile, from key `first` of the sequence.
typedef struct {
	int64_t n, first, row, heads;
	int32_t position[KEYS], segment[KEYS];
	int32_t position_min, position_max, segment_min, segment_max;
} keys;

static void range(const int32_t *x, int64_t n, int32_t *min, int32_t *max) {
	*min = *max = x[0];
	for (int64_t i = 1; i < n; i++) {
		*min = x[i] < *min ? x[i] : *min;
		*max = x[i] > *max ? x[i] : *max;
	}
}

// describe sets the positions and segments of a tile of `size` tokens, of which n exist.
static void describe(const int32_t *positions, int64_t origin, const int32_t *segments, int64_t first, int64_t n, int64_t size,
		int32_t *position, int32_t *segment) {
	for (int64_t i = 0; i < size; i++) {
		int64_t at = i < n ? i : n - 1;
		position[i] = positions ? positions[first + at] : origin + first + at;
		segment[i] = segments ? segments[first + at] : 0;
	}
}

static void take_queries(const attention *a, queries *q, int64_t b, int64_t h, int64_t tile) {
	int64_t first = tile * QUERIES;
	q->n = a->queries - first < QUERIES ? a->queries - first : QUERIES;
	q->row = (b * a->queries + first) * a->heads + h;
	q->heads = a->heads;
	const int32_t *segments = a->query_segment ? a->query_segment + b * a->queries : NULL;
	describe(a->query_position, a->keys - a->queries, segments, first, q->n, QUERIES, q->position, q->segment);
	range(q->position, q->n, &q->position_min, &q->position_max);
	range(q->segment, q->n, &q->segment_min, &q->segment_max);
}

// take_keys returns false after the last tile.
static int take_keys(const attention *a, keys *k, int64_t b, int64_t h, int64_t tile) {
	k->first = tile * KEYS;
	if (k->first >= a->keys) return 0;
	k->n = a->keys - k->first < KEYS ? a->keys - k->first : KEYS;
	k->row = (b * a->keys + k->first) * a->key_heads + h / (a->heads / a->key_heads);
	k->heads = a->key_heads;
	const int32_t *segments = a->key_segment ? a->key_segment + b * a->keys : NULL;
	describe(a->key_position, 0, segments, k->first, k->n, KEYS, k->position, k->segment);
	range(k->position, k->n, &k->position_min, &k->position_max);
	range(k->segment, k->n, &k->segment_min, &k->segment_max);
	return 1;
}

// sight says whether the queries see none, some or all of the keys, by the ranges of their positions and segments.
static int sight(const attention *a, const queries *q, const keys *k) {
	int64_t nearest = (int64_t)q->position_min - k->position_max, farthest = (int64_t)q->position_max - k->position_min;
	if (q->segment_max < k->segment_min || k->segment_max < q->segment_min) return NONE;
	if (a->causal && farthest < 0) return NONE;
	if (a->window && (nearest >= a->window || farthest <= -(int64_t)a->window)) return NONE;
	if (q->segment_min != q->segment_max || k->segment_min != k->segment_max) return SOME;
	if (a->causal && nearest < 0) return SOME;
	if (a->window && (farthest >= a->window || nearest <= -(int64_t)a->window)) return SOME;
	return EVERY;
}

// Of 4 queries, 4×STRIP elements are transposed at a time. The compiler copies whole strips with a few moves, since their
// size is constant.

// load_transposed loads a tile's queries as [width][ROW], with 0 beyond the last.
static void load_transposed(const array *a, const queries *q, int64_t width, float *to) {
	float strip[4 * STRIP];
	if (q->n < QUERIES) memset(to, 0, sizeof *to * ROW * width);
	for (int64_t i = 0; i < q->n; i += 4)
		for (int64_t x = 0; x < width; x += STRIP) {
			int64_t n = width - x < STRIP ? width - x : STRIP, rows = q->n - i < 4 ? q->n - i : 4, j = 0;
			if (rows < 4) memset(strip, 0, sizeof strip);
			for (int64_t r = 0; r < rows; r++) {
				int64_t at = (q->row + (i + r) * q->heads) * width + x;
				n == STRIP ? load(a, at, STRIP, strip + r * STRIP) : load(a, at, n, strip + r * STRIP);
			}
			for (; j + 4 <= n; j += 4) turn(strip + j, STRIP, to + (x + j) * ROW + i, ROW);
			for (; j < n; j++)
				for (int64_t r = 0; r < rows; r++) to[(x + j) * ROW + i + r] = strip[r * STRIP + j];
		}
}

static void store_transposed(const array *a, const queries *q, int64_t width, const float *from) {
	float strip[4 * STRIP];
	for (int64_t i = 0; i < q->n; i += 4)
		for (int64_t x = 0; x < width; x += STRIP) {
			int64_t n = width - x < STRIP ? width - x : STRIP, rows = q->n - i < 4 ? q->n - i : 4, j = 0;
			for (; j + 4 <= n; j += 4) turn(from + (x + j) * ROW + i, ROW, strip + j, STRIP);
			for (; j < n; j++)
				for (int64_t r = 0; r < rows; r++) strip[r * STRIP + j] = from[(x + j) * ROW + i + r];
			for (int64_t r = 0; r < rows; r++) {
				int64_t at = (q->row + (i + r) * q->heads) * width + x;
				n == STRIP ? store(a, at, STRIP, strip + r * STRIP) : store(a, at, n, strip + r * STRIP);
			}
		}
}

// load_rows copies a tile of keys or values to [n][width], since in the array a head's rows may be a power of two apart
// and share few cache lines.
static void load_rows(const array *a, const keys *k, int64_t width, float *to) {
	for (int64_t i = 0; i < k->n; i++) load(a, (k->row + i * k->heads) * width, width, to + i * width);
}

#define LOOPS "../../lib/flash/internal/kernel/tile.h"
#include "../../../../internal/vector/each.h"

void shardbook_flash_limit(int bits) { most_bits = bits; }

// absent reports whether an operand is a placeholder for missing positions or segments.
static int absent(const foreign_array *x) { return x->rank == 1 && !x->dims[0]; }

typedef struct { const char *name; const foreign_array *x; int type, rank; int64_t dims[4]; } expected;

static foreign_error *expect(foreign_frame *f, const expected *e, int n) {
	foreign_error *wrong = NULL;
	for (int i = 0; i < n && !wrong; i++) wrong = foreign_expect(f, e[i].name, e[i].x, e[i].type, e[i].rank, e[i].dims);
	return wrong;
}

#define EXPECT(f, ...) expect(f, (expected[]){__VA_ARGS__}, sizeof((expected[]){__VA_ARGS__}) / sizeof(expected))

// wide is the type of an array that may be float32 where q is not.
static int wide(const foreign_array *x, const foreign_array *q) {
	return x->type == FOREIGN_F32 ? FOREIGN_F32 : q->type;
}

// check_call checks the operands that forward and backward share, before any memory is read.
static foreign_error *check_call(foreign_frame *f, int operands) {
	foreign_error *wrong = foreign_count(f, "flash", operands, 3);
	if (wrong) return wrong;
	foreign_array *q = foreign_in(f, 0), *k = foreign_in(f, 1), *v = foreign_in(f, 2);
	const int T = q->type, any = FOREIGN_ANY;
	if (T != FOREIGN_F32 && T != FOREIGN_F16 && T != FOREIGN_BF16)
		return foreign_fail(f, "flash: arrays must be float32, float16 or bfloat16");
	wrong = EXPECT(f, {"flash: q", q, T, 4, {any, any, any, any}}, {"flash: k", k, T, 4, {any, any, any, any}});
	if (wrong) return wrong;
	for (int i = 0; i < 4; i++)
		if (!q->dims[i] || !k->dims[i]) return foreign_fail(f, "flash: q and k must not be empty");
	int64_t batch = q->dims[0], queries = q->dims[1], keys = k->dims[1], key_heads = k->dims[2];
	wrong = EXPECT(f, {"flash: k", k, T, 4, {batch, any, any, q->dims[3]}},
		{"flash: v", v, T, 4, {batch, keys, key_heads, any}},
		{"flash: numbers", foreign_in(f, 7), FOREIGN_S32, 1, {3}});
	if (wrong) return wrong;
	if (!v->dims[3]) return foreign_fail(f, "flash: v must not be empty");
	if (q->dims[2] % key_heads) return foreign_fail(f, "flash: the heads of q must be a multiple of those of k");
	const expected extra[4] = {
		{"flash: query positions", foreign_in(f, 3), FOREIGN_S32, 1, {queries}},
		{"flash: key positions", foreign_in(f, 4), FOREIGN_S32, 1, {keys}},
		{"flash: query segments", foreign_in(f, 5), FOREIGN_S32, 2, {batch, queries}},
		{"flash: key segments", foreign_in(f, 6), FOREIGN_S32, 2, {batch, keys}},
	};
	for (int i = 0; i < 4 && !wrong; i++)
		if (!absent(extra[i].x)) wrong = expect(f, extra + i, 1);
	if (!wrong && absent(extra[2].x) != absent(extra[3].x))
		wrong = foreign_fail(f, "flash: segments are given for both queries and keys or for none");
	return wrong;
}

// read_call reads the operands that forward and backward share: q, k, v, positions and segments (empty if missing), and
// three numbers: causal, window, and the bits of the scale.
static attention read_call(foreign_frame *f) {
	foreign_array *q = foreign_in(f, 0), *k = foreign_in(f, 1), *v = foreign_in(f, 2);
	int32_t *number = foreign_in(f, 7)->data;
	attention a = {
		.batch = q->dims[0], .queries = q->dims[1], .heads = q->dims[2], .d = q->dims[3],
		.keys = k->dims[1], .key_heads = k->dims[2], .e = v->dims[3],
		.q = {q->data, q->type}, .k = {k->data, k->type}, .v = {v->data, v->type},
		.causal = number[0], .window = number[1],
	};
	memcpy(&a.scale, number + 2, sizeof a.scale);
	const int32_t **extra[4] = {&a.query_position, &a.key_position, &a.query_segment, &a.key_segment};
	for (int i = 0; i < 4; i++)
		if (!absent(foreign_in(f, 3 + i))) *extra[i] = foreign_in(f, 3 + i)->data;
	return a;
}

static array as_array(foreign_array *x) { return (array){x->data, x->type}; }

static foreign_error *forward(foreign_frame *f) {
	foreign_error *wrong = check_call(f, 8);
	if (wrong) return wrong;
	attention a = read_call(f);
	foreign_array *out = foreign_out(f, 0);
	wrong = EXPECT(f, {"flash: the output", out, wide(out, foreign_in(f, 0)), 4, {a.batch, a.queries, a.heads, a.e}},
		{"flash: the largest scores", foreign_out(f, 1), FOREIGN_F32, 3, {a.batch, a.queries, a.heads}},
		{"flash: the sums", foreign_out(f, 2), FOREIGN_F32, 3, {a.batch, a.queries, a.heads}});
	if (wrong) return wrong;
	a.out = as_array(out);
	a.largest = foreign_out(f, 1)->data;
	a.sum = foreign_out(f, 2)->data;
	int64_t tiles = (a.queries + QUERIES - 1) / QUERIES, floats = ROW * (a.d + KEYS + a.e) + KEYS * (a.d + a.e);
	return foreign_for(f, a.batch * a.heads * tiles, sizeof(float) * floats, BEST(forward), &a);
}

static foreign_error *backward(foreign_frame *f) {
	foreign_error *wrong = check_call(f, 12);
	if (wrong) return wrong;
	attention a = read_call(f);
	foreign_array *q = foreign_in(f, 0), *output = foreign_in(f, 8), *dout = foreign_in(f, 11);
	wrong = EXPECT(f, {"flash: the output", output, wide(output, q), 4, {a.batch, a.queries, a.heads, a.e}},
		{"flash: the largest scores", foreign_in(f, 9), FOREIGN_F32, 3, {a.batch, a.queries, a.heads}},
		{"flash: the sums", foreign_in(f, 10), FOREIGN_F32, 3, {a.batch, a.queries, a.heads}},
		{"flash: the output's gradient", dout, wide(dout, q), 4, {a.batch, a.queries, a.heads, a.e}},
		{"flash: q's gradient", foreign_out(f, 0), q->type, 4, {a.batch, a.queries, a.heads, a.d}},
		{"flash: k's gradient", foreign_out(f, 1), q->type, 4, {a.batch, a.keys, a.key_heads, a.d}},
		{"flash: v's gradient", foreign_out(f, 2), q->type, 4, {a.batch, a.keys, a.key_heads, a.e}});
	if (wrong) return wrong;
	a.output = as_array(output);
	a.largest = foreign_in(f, 9)->data;
	a.sum = foreign_in(f, 10)->data;
	a.dout = as_array(dout);
	a.dq = as_array(foreign_out(f, 0));
	a.dk = as_array(foreign_out(f, 1));
	a.dv = as_array(foreign_out(f, 2));
	int64_t row = padded(a.d) + padded(a.e) + 2 * PAD, widest = a.d > a.e ? a.d : a.e;
	int64_t floats = (a.keys + QUERIES) * row + ROW * (a.d + a.e + widest + 2 * KEYS) + KEYS * (a.d + a.e);
	return foreign_for(f, a.batch * a.key_heads, sizeof(float) * floats, BEST(backward), &a);
}

void *shardbook_flash_forward(foreign_frame *f) { return foreign_handle(f, forward); }
void *shardbook_flash_backward(foreign_frame *f) { return foreign_handle(f, backward); }
