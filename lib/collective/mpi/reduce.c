//go:build mpi

// The reductions. MPI has none for the 16-bit floats, and its maximum and minimum
// of floats drop or keep a NaN by the order of the ranks; these keep it.

#include "ompi.h"

#include <stdint.h>

#include "../../../internal/half/half.h"

enum { FLOAT32, FLOAT64, BFLOAT16, FLOAT16, INT32, INT64, UINT8, TYPES };
enum { SUM, MEAN, PRODUCT, MAX, MIN, OPS };

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

REDUCTION(bfloat16_sum, uint16_t, float, from_bf16, to_bf16, ADD)
REDUCTION(bfloat16_product, uint16_t, float, from_bf16, to_bf16, MULTIPLY)
REDUCTION(bfloat16_max, uint16_t, float, from_bf16, to_bf16, LARGER)
REDUCTION(bfloat16_min, uint16_t, float, from_bf16, to_bf16, SMALLER)
REDUCTION(float16_sum, uint16_t, float, from_f16, to_f16, ADD)
REDUCTION(float16_product, uint16_t, float, from_f16, to_f16, MULTIPLY)
REDUCTION(float16_max, uint16_t, float, from_f16, to_f16, LARGER)
REDUCTION(float16_min, uint16_t, float, from_f16, to_f16, SMALLER)
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
	case BFLOAT16: DIVIDE(uint16_t, from_bf16, to_bf16, float) break;
	case FLOAT16: DIVIDE(uint16_t, from_f16, to_f16, float) break;
	}
}
