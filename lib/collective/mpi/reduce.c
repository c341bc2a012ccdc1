//go:build mpi

// The reductions. MPI has none for the 16-bit floats, and its maximum and minimum
// of floats drop or keep a NaN by the order of the ranks; these keep it.

#include "ompi.h"

#include <stdint.h>

enum { FLOAT32, FLOAT64, BFLOAT16, FLOAT16, INT32, INT64, UINT8, TYPES };
enum { SUM, MEAN, PRODUCT, MAX, MIN, OPS };

typedef union {
	float f;
	uint32_t u;
} word;

static float of_bfloat16(uint16_t h) {
	word w = {.u = (uint32_t)h << 16};
	return w.f;
}

// Rounds to nearest, ties to even.
static uint16_t to_bfloat16(float f) {
	word w = {.f = f};
	if (f != f) return w.u >> 16 | 0x40;
	return (w.u + 0x7fff + (w.u >> 16 & 1)) >> 16;
}

static float of_float16(uint16_t h) {
	const uint32_t exponents = 0x7c00 << 13;
	const word smallest = {.u = 113 << 23}; // 2^-14, the smallest normal number
	word w = {.u = (uint32_t)(h & 0x7fff) << 13};
	uint32_t exponent = w.u & exponents;
	w.u += (127 - 15) << 23;
	if (exponent == exponents) {
		w.u += (128 - 16) << 23; // infinity or NaN
	} else if (exponent == 0) {
		w.u += 1 << 23; // zero or below the normal numbers
		w.f -= smallest.f;
	}
	w.u |= (uint32_t)(h & 0x8000) << 16;
	return w.f;
}

// Rounds to nearest, ties to even.
static uint16_t to_float16(float f) {
	const word align = {.u = (127 - 15 + 23 - 10 + 1) << 23}; // adding it rounds to a multiple of 2^-24
	word w = {.f = f};
	uint32_t sign = w.u & 0x80000000;
	uint16_t h;
	w.u ^= sign;
	if (f != f) {
		h = 0x7e00;
	} else if (w.u >= (127 + 16) << 23) {
		h = 0x7c00;
	} else if (w.u < 113 << 23) {
		w.f += align.f;
		h = w.u - align.u;
	} else {
		w.u -= (127 - 15) << 23;
		h = (w.u + 0xfff + (w.u >> 13 & 1)) >> 13;
	}
	return sign >> 16 | h;
}

static float same(float f) { return f; }
static double same_double(double f) { return f; }

#define ADD(a, b) ((a) + (b))
#define MULTIPLY(a, b) ((a) * (b))
#define LARGER(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#define SMALLER(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))

// REDUCTION defines a function as MPI_Op_create wants it: to[i] = from[i] op to[i].
#define REDUCTION(name, stored, computed, load, store, combine)                     \
	static void name(void *from, void *to, int *n, MPI_Datatype *type) {        \
		const stored *a = from;                                             \
		stored *b = to;                                                     \
		(void)type;                                                         \
		for (ptrdiff_t i = 0; i < *n; i++) {                                \
			computed x = load(a[i]), y = load(b[i]);                    \
			b[i] = store(combine(x, y));                                \
		}                                                                   \
	}

REDUCTION(bfloat16_sum, uint16_t, float, of_bfloat16, to_bfloat16, ADD)
REDUCTION(bfloat16_product, uint16_t, float, of_bfloat16, to_bfloat16, MULTIPLY)
REDUCTION(bfloat16_max, uint16_t, float, of_bfloat16, to_bfloat16, LARGER)
REDUCTION(bfloat16_min, uint16_t, float, of_bfloat16, to_bfloat16, SMALLER)
REDUCTION(float16_sum, uint16_t, float, of_float16, to_float16, ADD)
REDUCTION(float16_product, uint16_t, float, of_float16, to_float16, MULTIPLY)
REDUCTION(float16_max, uint16_t, float, of_float16, to_float16, LARGER)
REDUCTION(float16_min, uint16_t, float, of_float16, to_float16, SMALLER)
REDUCTION(float32_max, float, float, same, same, LARGER)
REDUCTION(float32_min, float, float, same, same, SMALLER)
REDUCTION(float64_max, double, double, same_double, same_double, LARGER)
REDUCTION(float64_min, double, double, same_double, same_double, SMALLER)

static MPI_User_function *const functions[OPS][TYPES] = {
	[SUM][BFLOAT16] = bfloat16_sum,         [SUM][FLOAT16] = float16_sum,
	[PRODUCT][BFLOAT16] = bfloat16_product, [PRODUCT][FLOAT16] = float16_product,
	[MAX][BFLOAT16] = bfloat16_max,         [MAX][FLOAT16] = float16_max,
	[MIN][BFLOAT16] = bfloat16_min,         [MIN][FLOAT16] = float16_min,
	[MAX][FLOAT32] = float32_max,           [MAX][FLOAT64] = float64_max,
	[MIN][FLOAT32] = float32_min,           [MIN][FLOAT64] = float64_min,
};

static MPI_Op made[OPS][TYPES];

int shardbook_make_ops(void) {
	for (int op = 0; op < OPS; op++) {
		for (int type = 0; type < TYPES; type++) {
			if (functions[op][type] == NULL) continue;
			int code = MPI_Op_create(functions[op][type], 1, &made[op][type]);
			if (code != MPI_SUCCESS) return code;
		}
	}
	return MPI_SUCCESS;
}

MPI_Op shardbook_op(int op, int type) {
	if (op == MEAN) op = SUM;
	if (functions[op][type] != NULL) return made[op][type];
	switch (op) {
	case SUM: return MPI_SUM;
	case PRODUCT: return MPI_PROD;
	case MAX: return MPI_MAX;
	default: return MPI_MIN;
	}
}

#define DIVIDE(stored, load, store, computed)                                       \
	for (size_t i = 0; i < n; i++) ((stored *)data)[i] = store(load(((stored *)data)[i]) / (computed)ranks);

void shardbook_divide(void *data, size_t n, int type, int ranks) {
	switch (type) {
	case FLOAT32: DIVIDE(float, same, same, float) break;
	case FLOAT64: DIVIDE(double, same_double, same_double, double) break;
	case BFLOAT16: DIVIDE(uint16_t, of_bfloat16, to_bfloat16, float) break;
	case FLOAT16: DIVIDE(uint16_t, of_float16, to_float16, float) break;
	}
}
