//go:build !resident

// Matmuls and column sums on a CPU, called from XLA's programs: the operands of a call, and its division into parts for
// XLA's threads. The loops are in internal/vector's tile.h, and in columns.h.
#include "../../../../internal/vector/matmul.h"

enum { STRIPE = 64 }; // columns of a part of column sums: whole cache lines

typedef struct { int64_t rows, columns; const float *x; float *sums; } column_sums;

#define LOOPS "../../lib/xla/internal/dense/loops.h"
#include "../../../../internal/vector/each.h"

void shardbook_dense_limit(int bits) { most_bits = bits; }
int shardbook_dense_bits(void) { return vector_bits(); }

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
	int64_t parts = divide(&w, parts_for((double)w.m * w.n * w.k, foreign_threads(f)), BEST(tile_of)());
	return foreign_for(f, parts, scratch_for(w.rows, c->type), BEST(matmul), &w);
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
