//go:build !resident

// Matmuls and column sums on a CPU, called from XLA's programs. The loops are in tile.h. This file has what does not
// depend on the instruction set: the operands of a call, and its division into parts for XLA's threads.
#include <math.h>
#include <string.h>

#include "../../../../internal/vector/array.h"
#include "../../../../internal/vector/turn.h"

// A part of a matmul multiplies blocks: BLOCK_K×BLOCK_N of B, packed so that a tile's columns are contiguous and in the
// second-level cache, with a tile's rows of A in the first-level cache (Goto & van de Geijn 2008, "Anatomy of
// High-Performance Matrix Multiplication").
enum { BLOCK_M = 192, BLOCK_K = 256, BLOCK_N = 512 };
enum { ROW = BLOCK_K + 16 }; // floats from one packed row of A to the next, so that rows do not share few cache lines

// matmul is C = A·B + bias, with A (m,k) and B (k,n) each stored as it is or transposed, and C row-major.
typedef struct {
	int64_t m, n, k;
	array a, b, c;
	int a_turned, b_turned; // A is stored as (k,m), B as (n,k)
	const float *bias;      // (n), or NULL

	int64_t rows, columns, across; // of a part of C; parts side by side
} matmul;

typedef struct { int64_t rows, columns; } tile_size;

static int64_t over(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }

// ahead is what is left of a block that is packed next. While the block before it is multiplied, its rows come into the
// cache, a few with each tile: packing is otherwise as slow as memory.
typedef struct { const char *at; int64_t row, width, rows; } ahead; // row and width in bytes

static ahead ahead_of(const array *x, int64_t row, int64_t i, int64_t j, int64_t rows, int64_t columns) {
	int64_t size = x->type == FOREIGN_F32 ? sizeof(float) : sizeof(uint16_t);
	return (ahead){(const char *)x->data + (i * row + j) * size, row * size, columns * size, rows};
}

static ahead ahead_a(const matmul *w, int64_t i, int64_t bottom, int64_t x) {
	int64_t rows = lesser(bottom - i, BLOCK_M), depth = lesser(w->k - x, BLOCK_K);
	return w->a_turned ? ahead_of(&w->a, w->m, x, i, depth, rows) : ahead_of(&w->a, w->k, i, x, rows, depth);
}

static ahead ahead_b(const matmul *w, int64_t x, int64_t j, int64_t columns) {
	int64_t depth = lesser(w->k - x, BLOCK_K);
	return w->b_turned ? ahead_of(&w->b, w->k, j, x, columns, depth) : ahead_of(&w->b, w->n, x, j, depth, columns);
}

static inline void fetch(ahead *x, int64_t rows) {
	enum { LINE = 64 };
	for (; rows > 0 && x->rows; rows--, x->rows--, x->at += x->row)
		for (int64_t i = 0; i < x->width; i += LINE) __builtin_prefetch(x->at + i);
}

enum { STRIPE = 64 }; // columns of a part of column sums: whole cache lines

typedef struct { int64_t rows, columns; const float *x; float *sums; } column_sums;

#define NAME(x) plain_##x
#define LANES 4
#define ROWS 6
#include "tile.h"

#ifdef X86
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define NAME(x) avx2_##x
#define LANES 8
#define ROWS 6
#include "tile.h"
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,fma")
#define NAME(x) avx512_##x
#define LANES 16
#define ROWS 12
#include "tile.h"
#pragma GCC pop_options
#endif

void shardbook_dense_limit(int bits) { most_bits = bits; }
int shardbook_dense_bits(void) { return vector_bits(); }

// divide sets the parts of C: a few for each thread, so that one which is slowed down does less, and in that shape which
// packs least: every part packs its rows of A and its columns of B.
static int64_t divide(matmul *w, int64_t threads, tile_size tile) {
	enum { PARTS = 2, LEAST = 1 << 21 }; // of a thread; multiplications of a part
	double multiplications = (double)w->m * w->n * w->k;
	int64_t parts = threads > 1 ? fmin(PARTS * threads, ceil(multiplications / LEAST)) : 1, least = INT64_MAX;
	for (int64_t down = 1; down <= parts; down++) {
		int64_t across = over(parts, down), packed = across * w->m + down * w->n;
		if (packed >= least) continue;
		least = packed;
		w->rows = over(over(w->m, down), tile.rows) * tile.rows;
		w->columns = over(over(w->n, across), tile.columns) * tile.columns;
	}
	w->across = over(w->n, w->columns);
	return over(w->m, w->rows) * w->across;
}

// run reads and checks a call. The operands are A and B, of any rank whose axes are those of the rows and columns in
// order, and perhaps the bias. With elements mk, kn and mn, the sizes are the roots of quotients.
static foreign_error *run(foreign_frame *f, int a_turned, int b_turned) {
	foreign_error *wrong = foreign_count(f, "matmul", f->in.size == 3 ? 3 : 2, 1);
	if (wrong) return wrong;
	foreign_array *a = foreign_in(f, 0), *b = foreign_in(f, 1), *c = foreign_out(f, 0);
	const int T = a->type;
	if (T != FOREIGN_F32 && T != FOREIGN_F16 && T != FOREIGN_BF16)
		return foreign_fail(f, "matmul: arrays must be float32, float16 or bfloat16");
	if (b->type != T || (c->type != T && c->type != FOREIGN_F32))
		return foreign_fail(f, "matmul: operands must have one type, and the result the same or float32");
	int64_t mk = foreign_elements(a), kn = foreign_elements(b), mn = foreign_elements(c);
	if (!mk || !kn || !mn) return foreign_fail(f, "matmul: operands must not be empty");
	int64_t k = llround(sqrt((double)mk / mn * kn));
	if (!k || mk % k || kn % k || (mk / k) * (kn / k) != mn)
		return foreign_fail(f, "matmul: the sizes of operands and result do not fit");
	matmul w = {.m = mk / k, .n = kn / k, .k = k, .a = {a->data, T}, .b = {b->data, T}, .c = {c->data, c->type},
		.a_turned = a_turned, .b_turned = b_turned};
	if (f->in.size == 3) {
		wrong = foreign_expect(f, "matmul: bias", foreign_in(f, 2), FOREIGN_F32, 1, (int64_t[]){w.n});
		if (wrong) return wrong;
		w.bias = foreign_in(f, 2)->data;
	}
	int64_t parts = divide(&w, foreign_threads(f), BEST(tile_of)());
	size_t floats = BLOCK_K * BLOCK_N + BLOCK_M * ROW + (c->type == FOREIGN_F32 ? 0 : w.rows * BLOCK_N);
	return foreign_for(f, parts, sizeof(float) * floats, BEST(matmul), &w);
}

static foreign_error *nn(foreign_frame *f) { return run(f, 0, 0); }
static foreign_error *nt(foreign_frame *f) { return run(f, 0, 1); }
static foreign_error *tn(foreign_frame *f) { return run(f, 1, 0); }
static foreign_error *tt(foreign_frame *f) { return run(f, 1, 1); }

// sum_columns is the sum over the leading axes that the result does not have.
static foreign_error *sum_columns(foreign_frame *f) {
	foreign_error *wrong = foreign_count(f, "column sums", 1, 1);
	if (wrong) return wrong;
	foreign_array *x = foreign_in(f, 0), *sums = foreign_out(f, 0);
	if (x->type != FOREIGN_F32 || sums->type != FOREIGN_F32) return foreign_fail(f, "column sums: arrays must be float32");
	int64_t leading = x->rank - sums->rank;
	for (int64_t i = 0; i < sums->rank; i++)
		if (leading < 0 || x->dims[leading + i] != sums->dims[i])
			return foreign_fail(f, "column sums: the result must have the last axes of the operand");
	column_sums s = {.columns = foreign_elements(sums), .x = x->data, .sums = sums->data};
	if (!s.columns) return NULL;
	s.rows = foreign_elements(x) / s.columns;
	return foreign_for(f, over(s.columns, STRIPE), 0, BEST(column_sums), &s);
}

void *shardbook_matmul_nn(foreign_frame *f) { return foreign_handle(f, nn); }
void *shardbook_matmul_nt(foreign_frame *f) { return foreign_handle(f, nt); }
void *shardbook_matmul_tn(foreign_frame *f) { return foreign_handle(f, tn); }
void *shardbook_matmul_tt(foreign_frame *f) { return foreign_handle(f, tt); }
void *shardbook_column_sums(foreign_frame *f) { return foreign_handle(f, sum_columns); }
