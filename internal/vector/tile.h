// The loops of matmuls over tiles, in vectors of LANES floats. A C file includes matmul.h, and then compiles this
// file once for each instruction set (each.h). A tile of C has ROWS rows and two vectors of columns; its sums stay in
// registers while it goes through a block of A and B.

#include "vector.h"

#define COLUMNS (2 * LANES)

static tile_size NAME(tile_of)(void) { return (tile_size){ROWS, COLUMNS}; }

// pack_b copies a block of B, `depth` rows from x and n columns from j, to [column tile][row][COLUMNS], with zeros
// beyond the last column.
static void NAME(pack_b)(const matmul *w, int64_t x, int64_t depth, int64_t j, int64_t n, float *to) {
	for (int64_t end = j + n; j < end; j += COLUMNS, to += depth * COLUMNS) {
		int64_t columns = end - j < COLUMNS ? end - j : COLUMNS;
		int fast = columns == COLUMNS && w->b.type == FOREIGN_F32;
		const float *from = (const float *)w->b.data + (w->b_turned ? j * w->k + x : x * w->n + j);
		if (columns < COLUMNS) memset(to, 0, sizeof *to * depth * COLUMNS);
		if (!w->b_turned) {
			for (int64_t r = 0; r < depth; r++, from += w->n)
				if (fast) {
					VEC(to + r * COLUMNS) = VEC(from);
					VEC(to + r * COLUMNS + LANES) = VEC(from + LANES);
				} else {
					load(&w->b, (x + r) * w->n + j, columns, to + r * COLUMNS);
				}
			continue;
		}
		int64_t done = fast ? depth & -4 : 0;
		for (int64_t c = 0; done && c < COLUMNS; c += 4)
			for (int64_t r = 0; r < done; r += 4) turn(from + c * w->k + r, w->k, to + r * COLUMNS + c, COLUMNS);
		for (int64_t c = 0; c < columns; c++) {
			float row[BLOCK_K];
			load(&w->b, (j + c) * w->k + x + done, depth - done, row);
			for (int64_t r = done; r < depth; r++) to[r * COLUMNS + c] = row[r - done];
		}
	}
}

// pack_a copies a block of A, `rows` rows from i and `depth` columns from x, tile by tile: each as [row][ROW], or, where A
// is stored transposed, as [column][ROWS]. Rows up to a multiple of ROWS are zeros.
static void NAME(pack_a)(const matmul *w, int64_t i, int64_t rows, int64_t x, int64_t depth, float *to) {
	int64_t last = rows / ROWS * ROWS;
	if (last < rows) memset(to + last * ROW, 0, sizeof *to * ROWS * ROW);
	if (!w->a_turned) {
		for (int64_t r = 0; r < rows; r++) load(&w->a, (i + r) * w->k + x, depth, to + r * ROW);
		return;
	}
	for (int64_t c = 0; c < depth; c++) {
		float row[BLOCK_M];
		const float *from = (const float *)w->a.data + (x + c) * w->m + i;
		if (w->a.type != FOREIGN_F32) from = row, load(&w->a, (x + c) * w->m + i, rows, row);
		float *at = to + c * ROWS;
		for (int64_t r = 0; r < last; r += ROWS, from += ROWS, at += ROWS * ROW) memcpy(at, from, sizeof *to * ROWS);
		for (int64_t r = last; r < rows; r++) at[r - last] = *from++;
	}
}

// multiply sets a tile of C to the product of packed rows of A, whose elements are a_row and a_column apart, and a packed
// column tile of B, plus what C has, or plus the bias (one vector pair, or NULL).
inlined void NAME(multiply)(int64_t depth, const float *a, const int64_t a_row, const int64_t a_column, const float *b,
		float *c, int64_t c_row, int add, const float *bias) {
	vec sum[ROWS][2];
#pragma GCC unroll 16
	for (int r = 0; r < ROWS; r++) sum[r][0] = sum[r][1] = (vec){};
	for (int64_t x = 0; x < depth; x++, b += COLUMNS) {
		vec left = VEC(b), right = VEC(b + LANES);
#pragma GCC unroll 16
		for (int r = 0; r < ROWS; r++) {
			vec factor = ALL(a[r * a_row + x * a_column]);
			sum[r][0] += factor * left;
			sum[r][1] += factor * right;
		}
	}
	vec left = bias ? VEC(bias) : (vec){}, right = bias ? VEC(bias + LANES) : (vec){};
#pragma GCC unroll 16
	for (int r = 0; r < ROWS; r++, c += c_row) {
		VEC(c) = sum[r][0] + (add ? VEC(c) : left);
		VEC(c + LANES) = sum[r][1] + (add ? VEC(c + LANES) : right);
	}
}

// copy copies the columns of a row of a tile, mostly whole ones, for which a compiler's memcpy of up to COLUMNS is slow.
inlined void NAME(copy)(float *to, const float *from, int64_t columns) {
	if (columns < COLUMNS) {
		memcpy(to, from, sizeof *to * columns);
	} else {
		VEC(to) = VEC(from);
		VEC(to + LANES) = VEC(from + LANES);
	}
}

// tile is multiply for rows×columns of C, up to a whole tile.
static void NAME(tile)(const matmul *w, int64_t depth, const float *a, const float *b, float *c, int64_t c_row,
		int64_t rows, int64_t columns, int add, const float *bias) {
	float part[ROWS * COLUMNS], begin[COLUMNS] = {};
	float *to = c;
	int64_t to_row = c_row;
	int whole = rows == ROWS && columns == COLUMNS;
	if (!whole) {
		to = part, to_row = COLUMNS;
		for (int64_t r = 0; add && r < rows; r++) NAME(copy)(part + r * COLUMNS, c + r * c_row, columns);
		if (bias) bias = memcpy(begin, bias, sizeof *bias * columns);
	}
	if (w->a_turned)
		NAME(multiply)(depth, a, 1, ROWS, b, to, to_row, add, bias);
	else
		NAME(multiply)(depth, a, ROW, 1, b, to, to_row, add, bias);
	for (int64_t r = 0; !whole && r < rows; r++) NAME(copy)(c + r * c_row, part + r * COLUMNS, columns);
}

// matmul computes one part of C, in float32 also for half types.
static void NAME(matmul)(void *of, int64_t part, void *scratch) {
	const matmul *w = of;
	float *b = scratch, *a = b + BLOCK_K * BLOCK_N, *rounded = a + BLOCK_M * ROW;
	int64_t top = part / w->across * w->rows, bottom = top + w->rows < w->m ? top + w->rows : w->m;
	int64_t from = part % w->across * w->columns, to = from + w->columns < w->n ? from + w->columns : w->n;
	int direct = w->c.type == FOREIGN_F32;
	for (int64_t j = from; j < to; j += BLOCK_N) {
		int64_t columns = lesser(to - j, BLOCK_N), c_row = direct ? w->n : BLOCK_N;
		float *c = direct ? (float *)w->c.data + top * w->n + j : rounded;
		for (int64_t x = 0; x < w->k; x += BLOCK_K) {
			int64_t depth = lesser(w->k - x, BLOCK_K);
			NAME(pack_b)(w, x, depth, j, columns, b);
			for (int64_t i = top; i < bottom; i += BLOCK_M) {
				int64_t rows = lesser(bottom - i, BLOCK_M);
				NAME(pack_a)(w, i, rows, x, depth, a);
				ahead next_a = {}, next_b = {};
				if (i + rows < bottom)
					next_a = ahead_a(w, i + rows, bottom, x);
				else if (x + depth < w->k)
					next_a = ahead_a(w, top, bottom, x + depth), next_b = ahead_b(w, x + depth, j, columns);
				int64_t tiles = over(columns, COLUMNS) * over(rows, ROWS);
				int64_t rows_a = over(next_a.rows, tiles), rows_b = over(next_b.rows, tiles);
				for (int64_t q = 0; q < columns; q += COLUMNS)
					for (int64_t r = 0; r < rows; r += ROWS) {
						fetch(&next_a, rows_a), fetch(&next_b, rows_b);
						NAME(tile)(w, depth, a + r * ROW, b + q * depth, c + (i + r - top) * c_row + q, c_row,
							lesser(rows - r, ROWS), lesser(columns - q, COLUMNS), x > 0, w->bias ? w->bias + j + q : NULL);
					}
			}
		}
		for (int64_t i = top; !direct && i < bottom; i++) store(&w->c, i * w->n + j, columns, c + (i - top) * BLOCK_N);
	}
}

#undef COLUMNS
