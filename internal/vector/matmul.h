// Matmuls on a CPU, but for the loops, which are in tile.h: what does not depend on the instruction set.
#ifndef SHARDBOOK_MATMUL_H
#define SHARDBOOK_MATMUL_H

#include <math.h>
#include <string.h>

#include "array.h"
#include "turn.h"

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

// parts_for is how many parts of a matmul pay for a number of threads: a few for each, so that one which is slowed down
// does less.
static int64_t parts_for(double multiplications, int64_t threads) {
	enum { PARTS = 2, LEAST = 1 << 21 }; // of a thread; multiplications of a part
	return threads > 1 ? fmin(PARTS * threads, ceil(multiplications / LEAST)) : 1;
}

// divide cuts C into at most about that many parts, in that shape which packs least: every part packs its rows of A and
// its columns of B. It returns their number.
static int64_t divide(matmul *w, int64_t parts, tile_size tile) {
	int64_t least = INT64_MAX;
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

// scratch_for is the memory that a thread needs, for parts of at most that many rows of C.
static size_t scratch_for(int64_t rows, int c_type) {
	return sizeof(float) * (BLOCK_K * BLOCK_N + BLOCK_M * ROW + (c_type == FOREIGN_F32 ? 0 : rows * BLOCK_N));
}

#endif
