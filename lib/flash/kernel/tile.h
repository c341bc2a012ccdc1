// The loops of attention over tiles, in vectors of LANES floats. attention.c includes this file once for each instruction
// set, and NAME(x) gives the functions names of their own.
//
// The lanes of vectors are queries. Scores are held as S[key][query], so that a maximum or a sum over keys takes no step
// across lanes; and keys and values are read where they lie, one element at a time, as the factor that all lanes share.

typedef float NAME(vec) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t NAME(ivec) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
#define vec NAME(vec)
#define ivec NAME(ivec)
#define inlined static inline __attribute__((always_inline))

#define VEC(p) (*(vec *)(p))
#define IVEC(p) (*(const ivec *)(p))
#define ALL(x) ((x) - (vec){}) // x in all lanes: x - 0 is x, also for -0
#define COLUMNS (VECTORS * LANES)

// pick returns a where the condition (all bits or none) holds, else b.
inlined vec NAME(pick)(ivec condition, vec a, vec b) { return (vec)((condition & (ivec)a) | (~condition & (ivec)b)); }

// exp2 returns 2ˣ for x ≤ 0 within 1.2 units in the last place, 0 below 2⁻¹²⁶ and NaN of NaN: the nearest whole power by
// the exponent's bits, and the rest, in [-½, ½], by the Taylor polynomial of 2ʳ of degree 7.
inlined vec NAME(exp2)(vec x) {
	vec in = NAME(pick)(x < -127.0f, ALL(-127.0f), x);
	vec whole = in + 12582912.0f; // 1.5·2²³: the sum is rounded to a whole number, which its lowest bits hold
	vec r = in - (whole - 12582912.0f);
	vec p = ALL(1.5252733e-5f);
	p = p * r + 1.5403530e-4f;
	p = p * r + 1.3333558e-3f;
	p = p * r + 9.6181291e-3f;
	p = p * r + 5.5504109e-2f;
	p = p * r + 2.4022651e-1f;
	p = p * r + 6.9314718e-1f;
	p = p * r + 1.0f;
	return (vec)(((ivec)p + ((ivec)whole << 23)) & ~(x < -126.0f));
}

// micro makes rows×COLUMNS of a product in registers.
inlined void NAME(micro)(const int rows, int64_t n, const float *a, int64_t ar, int64_t ax, const float *b, int64_t bs,
		float *c, int64_t cs, int add) {
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
		for (int v = 0; v < VECTORS; v++) VEC(c + r * cs + v * LANES) = sum[r][v];
}

// product sets C, rows×columns, to a product or adds one to it: C[r][c] = Σₓ A[r·ar + x·ax]·B[x·bs + c], x below n.
// columns is a multiple of COLUMNS.
static void NAME(product)(int64_t rows, int64_t columns, int64_t n, const float *a, int64_t ar, int64_t ax,
		const float *b, int64_t bs, float *c, int64_t cs, int add) {
	for (int64_t at = 0; at < columns; at += COLUMNS) {
		const float *from = a;
		float *to = c + at;
		int64_t left = rows;
		for (; left >= ROWS; left -= ROWS, from += ROWS * ar, to += ROWS * cs)
			NAME(micro)(ROWS, n, from, ar, ax, b + at, bs, to, cs, add);
		for (; left >= 4; left -= 4, from += 4 * ar, to += 4 * cs) NAME(micro)(4, n, from, ar, ax, b + at, bs, to, cs, add);
		for (; left >= 2; left -= 2, from += 2 * ar, to += 2 * cs) NAME(micro)(2, n, from, ar, ax, b + at, bs, to, cs, add);
		if (left) NAME(micro)(1, n, from, ar, ax, b + at, bs, to, cs, add);
	}
}

// mask sets the scores that the queries may not see to -∞.
static void NAME(mask)(const attention *a, const queries *q, const keys *k, float *s) {
	for (int64_t i = 0; i < k->n; i++) {
		int32_t at = k->position[i], segment = k->segment[i];
		for (int v = 0; v < TILE; v += LANES) {
			ivec distance = IVEC(q->position + v) - at; // of the key behind the query
			ivec seen = IVEC(q->segment + v) == segment;
			if (a->causal) seen &= distance >= 0;
			if (a->window) seen &= (distance < a->window) & (distance > -a->window);
			float *x = s + i * TILE + v;
			VEC(x) = NAME(pick)(seen, VEC(x), ALL(-INFINITY));
		}
	}
}

// forward computes the outputs of one tile of queries of one head: online softmax over tiles of keys (Dao et al. 2022,
// Algorithm 1, with the division at the end of Dao 2023, §3.1).
static void NAME(forward)(void *of, int64_t i, void *scratch) {
	const attention *a = of;
	float *qt = scratch, *s = qt + TILE * a->d, *o = s + TILE * TILE, *kv = o + TILE * a->e;
	queries q;
	keys k;
	float largest[TILE], sum[TILE];
	int64_t tiles = (a->queries + TILE - 1) / TILE, h = i / tiles % a->heads, b = i / tiles / a->heads;
	take_queries(a, &q, b, h, i % tiles);
	load_transposed(&a->q, &q, a->d, qt);
	memset(o, 0, sizeof *o * TILE * a->e);
	for (int v = 0; v < TILE; v++) largest[v] = -INFINITY, sum[v] = 0;
	float c = a->scale * LOG2E;
	for (int64_t tile = 0; take_keys(a, &k, b, h, tile); tile++) {
		int seen = sight(a, &q, &k);
		if (seen == NONE) continue;
		rows key = row_tile(&a->k, &k, a->d, kv);
		NAME(product)(k.n, TILE, a->d, key.at, key.stride, 1, qt, TILE, s, TILE, 0);
		if (seen == SOME) NAME(mask)(a, &q, &k, s);
		for (int v = 0; v < TILE; v += LANES) {
			vec before = VEC(largest + v), now = before;
			for (int64_t j = 0; j < k.n; j++) {
				vec x = VEC(s + j * TILE + v);
				now = NAME(pick)(x > now, x, now);
			}
			VEC(largest + v) = now;
			vec base = (vec)((ivec)(now * c) & (now != -INFINITY)); // nothing seen yet: all weights are 2^-∞
			vec shrink = NAME(exp2)(before * c - base), total = {};
			for (int64_t j = 0; j < k.n; j++) {
				float *x = s + j * TILE + v;
				total += VEC(x) = NAME(exp2)(VEC(x) * c - base);
			}
			VEC(sum + v) = VEC(sum + v) * shrink + total;
			for (int64_t j = 0; j < a->e; j++) VEC(o + j * TILE + v) *= shrink;
		}
		rows value = row_tile(&a->v, &k, a->e, kv);
		NAME(product)(a->e, TILE, k.n, value.at, 1, value.stride, s, TILE, o, TILE, 1);
	}
	for (int v = 0; v < TILE; v += LANES) {
		ivec some = VEC(sum + v) != 0;
		for (int64_t j = 0; j < a->e; j++) {
			float *x = o + j * TILE + v;
			VEC(x) = (vec)((ivec)(VEC(x) / VEC(sum + v)) & some);
		}
		VEC(largest + v) *= a->scale;
	}
	store_transposed(&a->out, &q, a->e, o, s);
	for (int64_t j = 0; j < q.n; j++) {
		a->largest[q.row + j * a->heads] = largest[j];
		a->sum[q.row + j * a->heads] = sum[j];
	}
}

// backward computes the gradients of one key/value head: those of its keys and values are summed up over all tiles of
// queries, while those of a tile of queries are (Dao et al. 2022, Algorithm 4, with the loops the other way round).
static void NAME(backward)(void *of, int64_t i, void *scratch) {
	const attention *a = of;
	int64_t wide_d = padded(a->d), wide_e = padded(a->e);
	float *dk = scratch, *dv = dk + a->keys * wide_d;
	float *q_rows = dv + a->keys * wide_e, *do_rows = q_rows + TILE * wide_d;
	float *qt = do_rows + TILE * wide_e, *dot = qt + TILE * a->d, *dq = dot + TILE * a->e;
	float *s = dq + TILE * a->d, *ds = s + TILE * TILE, *kv = ds + TILE * TILE;
	queries q;
	keys k;
	float lse[TILE], delta[TILE];
	int64_t group = a->heads / a->key_heads, b = i / a->key_heads;
	memset(dk, 0, sizeof *dk * a->keys * (wide_d + wide_e));
	memset(q_rows, 0, sizeof *q_rows * TILE * (wide_d + wide_e));
	float c = a->scale * LOG2E;
	for (int64_t h = i % a->key_heads * group, last = h + group; h < last; h++)
		for (int64_t tile = 0; tile * TILE < a->queries; tile++) {
			take_queries(a, &q, b, h, tile);
			load_transposed(&a->q, &q, a->d, qt);
			load_transposed(&a->dout, &q, a->e, dot);
			for (int64_t j = 0; j < q.n; j++) {
				load(&a->q, (q.row + j * a->heads) * a->d, a->d, q_rows + j * wide_d);
				load(&a->dout, (q.row + j * a->heads) * a->e, a->e, do_rows + j * wide_e);
			}
			for (int64_t j = q.n; j < TILE; j++) {
				memset(q_rows + j * wide_d, 0, sizeof *q_rows * a->d);
				memset(do_rows + j * wide_e, 0, sizeof *do_rows * a->e);
			}
			for (int64_t j = 0; j < TILE; j++) {
				lse[j] = INFINITY, delta[j] = 0; // of what sees nothing: all its weights are 2^-∞
				if (j >= q.n || a->lse[q.row + j * a->heads] == -INFINITY) continue;
				lse[j] = a->lse[q.row + j * a->heads] * LOG2E;
				load(&a->output, (q.row + j * a->heads) * a->e, a->e, kv);
				for (int64_t x = 0; x < a->e; x++) delta[j] += kv[x] * do_rows[j * wide_e + x];
			}
			memset(dq, 0, sizeof *dq * TILE * a->d);
			for (int64_t n = 0; take_keys(a, &k, b, h, n); n++) {
				int seen = sight(a, &q, &k);
				if (seen == NONE) continue;
				rows value = row_tile(&a->v, &k, a->e, kv);
				NAME(product)(k.n, TILE, a->e, value.at, value.stride, 1, dot, TILE, ds, TILE, 0);
				rows key = row_tile(&a->k, &k, a->d, kv);
				NAME(product)(k.n, TILE, a->d, key.at, key.stride, 1, qt, TILE, s, TILE, 0);
				if (seen == SOME) NAME(mask)(a, &q, &k, s);
				for (int64_t j = 0; j < k.n * TILE; j += LANES) {
					int64_t v = j % TILE;
					vec p = NAME(exp2)(VEC(s + j) * c - VEC(lse + v));
					VEC(s + j) = p;
					VEC(ds + j) = p * (VEC(ds + j) - VEC(delta + v)) * a->scale;
				}
				NAME(product)(k.n, wide_e, TILE, s, TILE, 1, do_rows, wide_e, dv + k.first * wide_e, wide_e, 1);
				NAME(product)(k.n, wide_d, TILE, ds, TILE, 1, q_rows, wide_d, dk + k.first * wide_d, wide_d, 1);
				NAME(product)(a->d, TILE, k.n, key.at, 1, key.stride, ds, TILE, dq, TILE, 1);
			}
			store_transposed(&a->dq, &q, a->d, dq, s);
		}
	for (int64_t j = 0; j < a->keys; j++) {
		int64_t row = (b * a->keys + j) * a->key_heads + i % a->key_heads;
		store(&a->dk, row * a->d, a->d, dk + j * wide_d);
		store(&a->dv, row * a->e, a->e, dv + j * wide_e);
	}
}

#undef vec
#undef ivec
#undef inlined
#undef VEC
#undef IVEC
#undef ALL
#undef COLUMNS
