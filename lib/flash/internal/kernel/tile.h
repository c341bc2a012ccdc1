// The loops of attention over tiles, in vectors of LANES floats. attention.c compiles this file once for each instruction
// set. A matmul in registers has ROWS rows by VECTORS vectors.
//
// The lanes of vectors are queries. Scores are S[key][query], so that a maximum or a sum over keys does not cross lanes.
// Keys and values are read one element at a time and broadcast to all lanes.

#include "../../../../internal/vector/vector.h"

#define VECTORS 2
#define COLUMNS (VECTORS * LANES)

// same reports whether a and b are equal in all lanes.
inlined int NAME(same)(vec a, vec b) {
	ivec equal = a == b;
	int all = -1;
	for (int i = 0; i < LANES; i++) all &= equal[i];
	return all;
}

// micro computes rows×COLUMNS of a matmul in registers.
inlined void NAME(micro)(const int rows, int64_t n, const float *a, int64_t ar, int64_t ax, const float *b, int64_t bs,
		float *c, int64_t cs, int add, float times) {
	vec sum[ROWS][VECTORS];
#pragma GCC unroll 16
	for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
		for (int v = 0; v < VECTORS; v++) sum[r][v] = add ? VEC(c + r * cs + v * LANES) : (vec){};
	for (int64_t x = 0; x < n; x++) {
		vec row[VECTORS];
#pragma GCC unroll 16
		for (int v = 0; v < VECTORS; v++) row[v] = VEC(b + x * bs + v * LANES);
#pragma GCC unroll 16
		for (int r = 0; r < rows; r++) {
			vec factor = ALL(a[r * ar + x * ax]);
#pragma GCC unroll 16
			for (int v = 0; v < VECTORS; v++) sum[r][v] += factor * row[v];
		}
	}
#pragma GCC unroll 16
	for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
		for (int v = 0; v < VECTORS; v++) VEC(c + r * cs + v * LANES) = sum[r][v] * times;
}

// product sets C (rows×columns) to times·(C + AB), or to times·AB if add is 0. (AB)[r][c] is the sum over x < n of
// A[r·ar + x·ax]·B[x·bs + c]. columns is a multiple of COLUMNS.
static void NAME(product)(int64_t rows, int64_t columns, int64_t n, const float *a, int64_t ar, int64_t ax,
		const float *b, int64_t bs, float *c, int64_t cs, int add, float times) {
	for (int64_t at = 0; at < columns; at += COLUMNS) {
		const float *from = a;
		float *to = c + at;
		int64_t left = rows;
		for (; left >= ROWS; left -= ROWS, from += ROWS * ar, to += ROWS * cs)
			NAME(micro)(ROWS, n, from, ar, ax, b + at, bs, to, cs, add, times);
		for (; left >= 4; left -= 4, from += 4 * ar, to += 4 * cs) NAME(micro)(4, n, from, ar, ax, b + at, bs, to, cs, add, times);
		for (; left >= 2; left -= 2, from += 2 * ar, to += 2 * cs) NAME(micro)(2, n, from, ar, ax, b + at, bs, to, cs, add, times);
		if (left) NAME(micro)(1, n, from, ar, ax, b + at, bs, to, cs, add, times);
	}
}

// reach returns how many of a tile's keys matter to a strip of COLUMNS queries: the later ones come after all of these.
static int64_t NAME(reach)(const attention *a, const queries *q, const keys *k, int64_t strip) {
	int64_t n = k->n;
	if (!a->causal) return n;
	int32_t first, last;
	range(q->position + strip, COLUMNS, &first, &last);
	while (n && k->position[n - 1] > last) n--;
	return n;
}

// mask sets masked scores of a strip of queries and the first n keys to -∞.
static void NAME(mask)(const attention *a, const queries *q, const keys *k, int64_t strip, int64_t n, float *s) {
	for (int64_t i = 0; i < n; i++) {
		int32_t at = k->position[i], segment = k->segment[i];
		for (int64_t v = strip; v < strip + COLUMNS; v += LANES) {
			ivec position = IVEC(q->position + v), behind = position >= at;
			ivec seen = IVEC(q->segment + v) == segment;
			if (a->causal) seen &= behind;
			if (a->window) { // unsigned, since the difference may wrap around
				uvec distance = (uvec)position - (uint32_t)at;
				distance = (distance & (uvec)behind) | (-distance & ~(uvec)behind);
				seen &= (ivec)(distance < (uint32_t)a->window);
			}
			float *x = s + i * ROW + v;
			VEC(x) = NAME(pick)(seen, VEC(x), ALL(-INFINITY));
		}
	}
}

// forward computes the outputs of one tile of queries of one head: online softmax over tiles of keys (Dao et al. 2022,
// Algorithm 1, with the division at the end of Dao 2023, §3.1).
static void NAME(forward)(void *of, int64_t i, void *scratch) {
	const attention *a = of;
	float *qt = scratch, *s = qt + ROW * a->d, *o = s + KEYS * ROW, *k_rows = o + ROW * a->e, *v_rows = k_rows + KEYS * a->d;
	queries q;
	keys k;
	float largest[QUERIES], sum[QUERIES];
	int64_t tiles = (a->queries + QUERIES - 1) / QUERIES, h = i / tiles % a->heads, b = i / tiles / a->heads;
	take_queries(a, &q, b, h, i % tiles);
	load_transposed(&a->q, &q, a->d, qt);
	memset(o, 0, sizeof *o * ROW * a->e);
	for (int v = 0; v < QUERIES; v++) largest[v] = -INFINITY, sum[v] = 0;
	for (int64_t block = 0; take_keys(a, &k, b, h, block); block++) {
		int seen = sight(a, &q, &k);
		if (seen == NONE) continue;
		load_rows(&a->k, &k, a->d, k_rows);
		load_rows(&a->v, &k, a->e, v_rows);
		for (int64_t strip = 0; strip < q.n; strip += COLUMNS) {
			int64_t n = NAME(reach)(a, &q, &k, strip);
			if (!n) continue;
			NAME(product)(n, COLUMNS, a->d, k_rows, a->d, 1, qt + strip, ROW, s + strip, ROW, 0, a->scale);
			if (seen == SOME) NAME(mask)(a, &q, &k, strip, n, s);
			for (int64_t v = strip; v < strip + COLUMNS; v += LANES) {
				vec before = VEC(largest + v), now = before;
				for (int64_t j = 0; j < n; j++) {
					vec x = VEC(s + j * ROW + v);
					now = NAME(pick)(x > now, x, now);
				}
				VEC(largest + v) = now;
				vec base = (vec)((ivec)now & (now != -INFINITY)); // no key seen yet: all weights are e^-∞
				vec shrink = NAME(exp)(before - base), total = {};
				for (int64_t j = 0; j < n; j++) {
					float *x = s + j * ROW + v;
					total += VEC(x) = NAME(exp)(VEC(x) - base);
				}
				VEC(sum + v) = VEC(sum + v) * shrink + total;
				if (!NAME(same)(before, now))
					for (int64_t j = 0; j < a->e; j++) VEC(o + j * ROW + v) *= shrink;
			}
			NAME(product)(a->e, COLUMNS, n, v_rows, 1, a->e, s + strip, ROW, o + strip, ROW, 1, 1);
		}
	}
	for (int v = 0; v < QUERIES; v += LANES) {
		ivec some = VEC(sum + v) != 0;
		for (int64_t j = 0; j < a->e; j++) {
			float *x = o + j * ROW + v;
			VEC(x) = (vec)((ivec)(VEC(x) / VEC(sum + v)) & some);
		}
	}
	store_transposed(&a->out, &q, a->e, o);
	for (int64_t j = 0; j < q.n; j++) {
		a->largest[q.row + j * a->heads] = largest[j];
		a->sum[q.row + j * a->heads] = sum[j];
	}
}

// backward computes the gradients of one key/value head. It accumulates those of all its keys and values while it loops
// over tiles of queries (Dao et al. 2022, Algorithm 4, with the loops swapped).
static void NAME(backward)(void *of, int64_t i, void *scratch) {
	const attention *a = of;
	int64_t wide_d = padded(a->d), wide_e = padded(a->e), step_d = wide_d + PAD, step_e = wide_e + PAD;
	float *dk = scratch, *dv = dk + a->keys * step_d;
	float *q_rows = dv + a->keys * step_e, *do_rows = q_rows + QUERIES * step_d;
	float *qt = do_rows + QUERIES * step_e, *dot = qt + ROW * a->d, *dq = dot + ROW * a->e;
	float *s = dq + ROW * (a->d > a->e ? a->d : a->e), *ds = s + KEYS * ROW;
	float *k_rows = ds + KEYS * ROW, *v_rows = k_rows + KEYS * a->d;
	queries q;
	keys k;
	float largest[QUERIES], share[QUERIES], delta[QUERIES];
	int64_t group = a->heads / a->key_heads, b = i / a->key_heads;
	memset(dk, 0, sizeof *dk * a->keys * (step_d + step_e));
	memset(q_rows, 0, sizeof *q_rows * QUERIES * (step_d + step_e));
	for (int64_t h = i % a->key_heads * group, last = h + group; h < last; h++)
		for (int64_t tile = 0; tile * QUERIES < a->queries; tile++) {
			take_queries(a, &q, b, h, tile);
			load_transposed(&a->q, &q, a->d, qt);
			load_transposed(&a->dout, &q, a->e, dot);
			for (int64_t j = 0; j < q.n; j++) {
				load(&a->q, (q.row + j * a->heads) * a->d, a->d, q_rows + j * step_d);
				load(&a->dout, (q.row + j * a->heads) * a->e, a->e, do_rows + j * step_e);
			}
			for (int64_t j = q.n; j < QUERIES; j++) {
				memset(q_rows + j * step_d, 0, sizeof *q_rows * a->d);
				memset(do_rows + j * step_e, 0, sizeof *do_rows * a->e);
			}
			for (int64_t j = 0; j < QUERIES; j++) {
				int64_t row = q.row + j * a->heads;
				int seen = j < q.n && a->sum[row] != 0;
				largest[j] = seen ? a->largest[row] : INFINITY; // a query that sees no key has weights e^-∞
				share[j] = seen ? 1 / a->sum[row] : 0;
			}
			// The output times its gradient, summed in the order of the matmul from which it is subtracted below: where one
			// key has all the weight, the difference is exactly 0.
			load_transposed(&a->output, &q, a->e, dq);
			for (int v = 0; v < QUERIES; v += LANES) {
				vec sum = {};
				for (int64_t j = 0; j < a->e; j++) sum += VEC(dq + j * ROW + v) * VEC(dot + j * ROW + v);
				VEC(delta + v) = sum;
			}
			memset(dq, 0, sizeof *dq * ROW * a->d);
			int64_t end = (q.n + COLUMNS - 1) / COLUMNS * COLUMNS;
			for (int64_t block = 0; take_keys(a, &k, b, h, block); block++) {
				int seen = sight(a, &q, &k);
				if (seen == NONE) continue;
				load_rows(&a->k, &k, a->d, k_rows);
				load_rows(&a->v, &k, a->e, v_rows);
				int64_t n = 0, reached[QUERIES / COLUMNS]; // keys that a strip or one before it sees
				for (int64_t strip = 0; strip < q.n; strip += COLUMNS) {
					int64_t reach = NAME(reach)(a, &q, &k, strip);
					reached[strip / COLUMNS] = n = reach > n ? reach : n;
					NAME(product)(n, COLUMNS, a->e, v_rows, a->e, 1, dot + strip, ROW, ds + strip, ROW, 0, 1);
					NAME(product)(n, COLUMNS, a->d, k_rows, a->d, 1, qt + strip, ROW, s + strip, ROW, 0, a->scale);
					if (seen == SOME) NAME(mask)(a, &q, &k, strip, n, s);
					for (int64_t j = 0; j < n; j++)
						for (int64_t v = strip; v < strip + COLUMNS; v += LANES) {
							float *x = s + j * ROW + v, *dx = ds + j * ROW + v;
							vec p = NAME(exp)(VEC(x) - VEC(largest + v)) * VEC(share + v);
							VEC(x) = p;
							VEC(dx) = p * (VEC(dx) - VEC(delta + v));
						}
					NAME(product)(a->d, COLUMNS, n, k_rows, 1, a->d, ds + strip, ROW, dq + strip, ROW, 1, 1);
				}
				// Keys that a strip is the first to see are summed over it and all later ones.
				for (int64_t strip = 0, first = 0; strip < q.n; first = reached[strip / COLUMNS], strip += COLUMNS) {
					int64_t rows = reached[strip / COLUMNS] - first, at = first * ROW + strip, key = k.first + first;
					NAME(product)(rows, wide_e, end - strip, s + at, ROW, 1, do_rows + strip * step_e, step_e, dv + key * step_e,
						step_e, 1, 1);
					NAME(product)(rows, wide_d, end - strip, ds + at, ROW, 1, q_rows + strip * step_d, step_d, dk + key * step_d,
						step_d, 1, 1);
				}
			}
			for (int64_t j = 0; j < ROW * a->d; j++) dq[j] *= a->scale;
			store_transposed(&a->dq, &q, a->d, dq);
		}
	for (int64_t j = 0; j < a->keys * step_d; j++) dk[j] *= a->scale;
	for (int64_t j = 0; j < a->keys; j++) {
		int64_t row = (b * a->keys + j) * a->key_heads + i % a->key_heads;
		store(&a->dk, row * a->d, a->d, dk + j * step_d);
		store(&a->dv, row * a->e, a->e, dv + j * step_e);
	}
}

#undef COLUMNS
#undef VECTORS
