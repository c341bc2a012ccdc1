//go:build !resident

// What surrounds the matmuls of a Transformer, on a CPU: each operation and its gradient in one pass over the rows. Called
// from XLA's programs. The loops are in loops.h; this file has the operands of each kernel and the division into parts.
#include <math.h>
#include <string.h>

#include "../../../xla/foreign/foreign.h"

// call is one call. Its first operand is a matrix: x (…, columns), whose other axes are the rows.
typedef struct {
	int64_t rows, columns, each; // of these rows are a part
	const void *in[5];
	void *out[3];
	float *sums; // of a part's rows: a row for each result that is a sum over all rows
} call;

static inline int64_t last_row(const call *c, int64_t part) {
	return (part + 1) * c->each < c->rows ? (part + 1) * c->each : c->rows;
}

#define LOOPS "../../lib/fused/internal/kernel/loops.h"
#include "../../../../internal/vector/each.h"

void shardbook_fused_limit(int bits) { most_bits = bits; }
int shardbook_fused_bits(void) { return vector_bits(); }

// expect checks arrays by a letter each: m, a matrix like x; r, one number a row, and t, one int32 a row; c, one number a
// column; e, nothing, which is there since GoMLX drops a call with one result.
static foreign_error *expect(foreign_frame *f, const char *kernel, const char *what, const char *letters, foreign_arrays *all) {
	const foreign_array *x = foreign_in(f, 0);
	for (int i = 0; letters[i]; i++) {
		char name[100], letter = letters[i];
		int64_t sizes[] = {x->dims[x->rank - 1], 0}, rank = letter == 'm' ? x->rank : strchr("rt", letter) ? x->rank - 1 : 1;
		const int64_t *dims = strchr("mrt", letter) ? x->dims : sizes + (letter == 'e');
		snprintf(name, sizeof name, "%s: %s %d", kernel, what, i);
		foreign_error *wrong = foreign_expect(f, name, all->at[i], letter == 't' ? FOREIGN_S32 : FOREIGN_F32, rank, dims);
		if (wrong) return wrong;
	}
	return NULL;
}

// run runs a kernel. Of its results, the letters c are sums over all rows: parts of few rows sum by themselves, so that
// rounding errors do not grow with the rows, and the sums are the same for any number of threads.
static foreign_error *run(foreign_frame *f, const char *kernel, const char *operands, const char *results,
		void (*part)(void *, int64_t, void *)) {
	enum { SUMMED = 32, LEAST = 1 << 14 }; // rows of a part that sums, and the least elements of another
	foreign_error *wrong = foreign_count(f, kernel, strlen(operands), strlen(results));
	if (wrong) return wrong;
	const foreign_array *x = foreign_in(f, 0);
	call c = {.rows = 1};
	for (int64_t i = 0; i < x->rank - 1; i++) c.rows *= x->dims[i];
	if (!x->rank || !c.rows || !x->dims[x->rank - 1]) return foreign_fail(f, "fused: operands must not be empty");
	if ((wrong = expect(f, kernel, "operand", operands, &f->in))) return wrong;
	if ((wrong = expect(f, kernel, "result", results, &f->out))) return wrong;
	c.columns = x->dims[x->rank - 1];
	int64_t summed = 0, first = strcspn(results, "c");
	for (int i = 0; operands[i]; i++) c.in[i] = foreign_in(f, i)->data;
	for (int i = 0; results[i]; i++) c.out[i] = foreign_out(f, i)->data, summed += results[i] == 'c';
	c.each = summed ? SUMMED : LEAST / c.columns + 1;
	int64_t parts = (c.rows + c.each - 1) / c.each, row = summed * c.columns;
	if (summed && !(c.sums = calloc(parts * row, sizeof *c.sums))) return foreign_fail(f, "out of memory");
	wrong = foreign_for(f, parts, 0, part, &c);
	for (int64_t i = 0; i < summed; i++) {
		float *sums = c.out[first + i];
		memset(sums, 0, c.columns * sizeof *sums);
		for (int64_t p = 0; p < parts; p++)
			for (int64_t j = 0; j < c.columns; j++) sums[j] += c.sums[p * row + i * c.columns + j];
	}
	free(c.sums);
	return wrong;
}

// KERNEL defines a kernel: its name for errors, its operands, its results.
#define KERNEL(loops, name, operands, results) \
	static foreign_error *run_##loops(foreign_frame *f) { return run(f, name, operands, results, BEST(loops)); } \
	void *shardbook_fused_##loops(foreign_frame *f) { return foreign_handle(f, run_##loops); }

// x, bias; y
KERNEL(gelu_rows, "GELU", "mc", "me")
// x, bias, dy; dx, dbias
KERNEL(gelu_gradient, "GELU's gradient", "mcm", "mc")
// logits, targets; each row's loss (0 for a target that is no column), largest logit, sum of exponentials
KERNEL(cross_entropy, "cross-entropy", "mt", "rrr")
// logits, targets, largest, sum, dloss; dlogits
KERNEL(cross_entropy_gradient, "cross-entropy's gradient", "mtrrr", "me")
